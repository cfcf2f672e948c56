"""A registrar as its own service: it signs the identities of devices that prove to be real."""
