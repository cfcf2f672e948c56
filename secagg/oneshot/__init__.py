"""One-shot sums: a device sends one message and may go; a committee opens the sum later.

Each device shares its vector among m members and encrypts a share for each of them. After the
round has closed, the members agree on one set of messages and release the sums of their shares
over that set. The server interpolates the sum of all vectors from these sums. Nobody waits for a
device, and a device that drops out is a message that is missing.

At most A members collude with the server, and at most D drop out. The server, the colluding
members and any devices learn about the other devices only the sum over one set of messages, which
has `minimum` messages or more. The sum is right or does not open. It opens if the members that
drop out, refuse or lie number at most D together.

Read `run` first: one whole sum on one page. Then `parameters` (the numbers of a committee),
`field` and `sharing` (packed shares and the degree test), `committee` (labels and the list of
members), `message` (the message of a device), `member` (the chain of states of a member) and
`opening` (the work of the server). `moduli` has the prime of a mechanism's lanes, and joins them to
one. Pads are X25519 agreements: an adversary with a quantum computer that has stored the messages
reads them.

Sources: packed shares of the vector itself for a committee [DisAgg], the degree test and its blind
[Ligero], one message per device [OPA]. The agreement of the members on one set, complaints that
open no share, and the limit of corrections are additions of blindtally.

[DisAgg] arXiv 2605.13708. [Ligero] Ames, Hazay, Ishai and Venkitasubramaniam, CCS 2017. [OPA]
Karthikeyan and Polychroniadou, CRYPTO 2025. [Franklin92] Franklin and Yung, Communication
Complexity of Secure Computation, STOC 1992. [BCIKS20] Ben-Sasson, Carmon, Ishai, Kopparty and
Saraf, Proximity Gaps for Reed-Solomon Codes, FOCS 2020.
"""
