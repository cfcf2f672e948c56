"""Secure sums: the server learns the sum of many vectors, and nothing else about any vector.

The claim. In a cohort of n participants at most a fraction gamma (`corrupt`) colludes with the
server, and at most a fraction delta (`dropout`) drops out, in any phase, one by one or together:

    privacy      about the honest participants, server and colluders together learn only the
                 sum over one set of at least n - delta n survivors (less a few, if the server
                 is active), except with probability 2^-sigma per sharing of keys, and except
                 for the cost of breaking X25519, Ed25519, SHA-256 or AES;
    correctness  the sum of the survivors' vectors is exact, except with probability 2^-eta
                 that the cohort fails; with more dropouts the cohort fails, and nothing of the
                 sum is published. A participant that sends false shares is refused or blamed,
                 and never makes the sum wrong.

In the `active` mode (the default; gamma + 2 delta <= 0.9) privacy holds against a server that
sends any messages it wants: it changes keys and lists, shows two rosters or two sets of survivors,
names any participants as dropouts after it has seen the graph, and replays messages. The claim
assumes that the server owns at most gamma n identities of a cohort: with a `Registry` the
registrar ensures this, without one the server must be trusted for it.

In the `semi-honest` mode (gamma + delta <= 0.9) the server follows the protocol but is curious.
Participants confirm nothing, check no signatures, and mask with fewer neighbours.

Correctness holds against participants; a server that departs from the protocol can always spoil
its own sum. A dealer whose shares do not match its commitment is blamed, and can cost its own
cohort the sum, but no other cohort. The protocol does not hide who takes part and when (traffic
analysis), does not protect against side channels of Python, against what the sum itself reveals
or against dishonest inputs, and limits Sybils only by enrolment. The proof is in
`docs/threat-model.md`.

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
