# Stands in for postgres:17: the same user, volume, signals and environment.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends postgresql-17 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \
 && install --directory --owner postgres --group postgres --mode 1777 /var/lib/postgresql/data \
 && install --directory --owner postgres --group postgres --mode 3777 /run/postgresql
ENV PATH=$PATH:/usr/lib/postgresql/17/bin PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
COPY postgres-entrypoint /usr/local/bin/
VOLUME /var/lib/postgresql/data
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
CMD ["postgres"]
