"""Secure sums: a server learns the sum of vectors, and of no vector more than that.

The claim. For a cohort of n participants, of which at most a fraction gamma (`corrupt`)
colludes with the server and at most delta (`dropout`) is lost, in any phase, alone or in
crowds:

    privacy      server and colluders together learn of the honest participants the sum over
                 one set of n - delta n survivors or more (less a handful, if the server is
                 active) and nothing else, but for odds of 2^-sigma each time that keys are
                 shared, and what breaking X25519, Ed25519, SHA-256 or AES would give;
    correctness  the sum of the survivors' vectors is exact, but for odds of 2^-eta that the
                 cohort fails; when more is lost, it fails, and nothing of the sum is shown.
                 Who lies about shares is refused or named, and never makes the sum wrong.

In the `active` mode (the default; gamma + 2 delta <= 0.9) privacy holds against a server that
says to each participant what it likes: that changes keys and lists, shows two rosters or two
sets of survivors, names whom it likes as lost once it has seen the graph, and replays. It
assumes that no more than gamma n identities of a cohort are the server's own: with a
`Registry` that is up to the registrar, without one up to the server.

In the `semi-honest` mode (gamma + delta <= 0.9) the server keeps to the protocol and is
curious. Participants confirm nothing and check no signatures, and mask with fewer partners.

Correctness is against participants; a server that departs from the protocol can always spoil
its own sum. A dealer that shares another secret than it committed to is named and can cost
its own cohort the sum, not another's. Never claimed: hiding who takes part and when (traffic
analysis), side channels of Python, what the sum itself tells, that inputs are honest, and
Sybils beyond the rule of enrolment. The proof is in `docs/threat-model.md`.

Read in this order: `ring` (what is added), `participant` (the protocol), `parameters` and
`graph` (who holds whose shares), `cohort`, `parcels` and `deals` (what is said), `aggregator` (the
server's half), then `recovery`, `masks`, `shamir` and `keys`.

Sources: [Bonawitz17] Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017. [Bell20] Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS
2020. [Shamir79] How to Share a Secret, CACM 22(11). [Gao03] A New Algorithm for Decoding
Reed-Solomon Codes. [SP800-56C] Recommendation for
Key-Derivation Methods in Key-Establishment Schemes. [RFC8032] EdDSA. [Even97] A Construction
of a Cipher from a Single Pseudorandom Permutation. [SEC1] Elliptic Curve Cryptography,
version 2. [Gascon23] Federated Heavy Hitter
Recovery under Linear Sketching, ICML 2023.
"""
