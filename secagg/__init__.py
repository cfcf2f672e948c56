"""Secure sums: a server learns the sum of vectors, and of no vector more than that.

The claim. For a cohort of n participants, of which at most a fraction `corrupt` colludes
with the server and at most `dropout` is lost, in any phase, alone or in crowds:

    privacy      whoever follows the protocol is hidden in the sum of the honest survivors:
                 server and colluders together learn that sum and nothing else, but for odds
                 of 2^-sigma and what breaking X25519, HKDF-SHA256 or AES would give;
    correctness  the sum of the survivors' vectors is exact, but for odds of 2^-eta that the
                 cohort fails; when more is lost, it fails, and nothing of the sum is shown.

This holds in the `semi-honest` mode: the server keeps to the protocol and is curious. It
assumes that the server chooses the random graph before it knows who is corrupt, tells all
participants the same, and passes on keys and envelopes unchanged; a participant refuses
what it can see to be otherwise. Correctness needs less: false shares are outvoted and
named or cost the sum, since each recovered secret is checked against a commitment. Signed
rosters and one survivor set that all have seen are the `active` mode, for which `parameters`
computes k and t already; no study may promise it yet. Never claimed:
hiding who takes part, what the sum itself tells, or that inputs are honest.

Read in this order: `ring` (what is added), `participant` (the protocol), `graph` (k and t),
`aggregator` (the server's half), then `masks`, `shamir` and `keys`.

Sources: [Bonawitz17] Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017. [Bell20] Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS
2020. [Shamir79] How to Share a Secret, CACM 22(11). [Gao03] A New Algorithm for Decoding
Reed-Solomon Codes. [RFC5869] HKDF. [Gascon23] Federated Heavy Hitter Recovery under Linear
Sketching, ICML 2023.
"""
