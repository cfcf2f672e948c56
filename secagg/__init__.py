"""Secure sums: the server learns the sum of many vectors, and nothing else about any vector.

In a cohort of n participants at most a fraction gamma (`corrupt`) colludes with the server, and at
most a fraction delta (`dropout`) drops out. Server and colluders learn about the honest
participants only the sum over one set of at least n - delta n survivors, less a few, except with
probability 2^-sigma per sharing of keys; the sum is exact, except with probability 2^-eta that the
cohort fails. This holds against an active server, which sends any messages it wants. Assumptions,
limits and the proof: `docs/threat-model.md`.

Read `run` first: one whole secure sum on one page. Then `ring` (the vectors and their masks),
`participant` and `aggregator` (the two parties), `unmasking` (the end of the sum), `parameters`
(the number of holders), `session` (labels and the graph of holders), `roster` and `messages`
(bytes), `shamir` and `keys`.

Sources: [Bonawitz17] Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017. [Bell20] Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS
2020. [Shamir79] How to Share a Secret, CACM 22(11). [Gao03] A New Algorithm for Decoding
Reed-Solomon Codes. [SP800-56C] Recommendation for Key-Derivation Methods in Key-Establishment
Schemes. [RFC8032] EdDSA. [Even97] A Construction of a Cipher from a Single Pseudorandom
Permutation. [SEC1] Elliptic Curve Cryptography, version 2. [Gascon23] Federated Heavy Hitter
Recovery under Linear Sketching, ICML 2023.
"""
