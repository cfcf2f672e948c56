"""Recovery of secrets from revealed shares, and removal of the masks from the sum.

The sum of the masked vectors of the survivors S is

    sum of x_u over S  +  sum of mask(b_u) over S  +  pairwise masks between S and the dropouts

so the server recovers the seed b_u of each survivor, and the mask key of each dealer that dropped
out, each from `threshold` shares, and subtracts these masks. A participant that dropped out before
it shared is in no mask. The server never holds both secrets of one participant, and a recovered
secret exists only during `unmask`.

A secret counts as recovered only if it matches its commitment (a mask key: its public key). If t
shares give another secret, all its shares are compared with the dealer's commitments: a holder
whose share differs is blamed, and its share is left out. If the remaining shares do not give the
committed secret either, the dealer is blamed, and the secret is corrected or the cohort fails; the
sum is never wrong. The share of a holder that complained about its dealer is the dealer's answer.

Source: [Bonawitz17, figure 4, round 4]. Commitments and corrections are additions of blindtally.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from secagg.aggregator import UnmaskingRequest
from secagg.errors import RecoveryError
from secagg.keys import KeyPair
from secagg.masks import MaskedVector
from secagg.messages import REVEALED_SHARE_DTYPE, Answers, KeyShares, UnmaskingShares
from secagg.ring import Ring, Vector
from secagg.shamir import SHARE_BYTES, correct_errors, recover, recover_many
from secagg.shares import commit_seed, commit_share

FALSE_DEALER = "sent shares that are not of the secret that it committed to"
FALSE_HOLDER = "revealed a share that differs from the one sent to it"
_SEARCH_BATCH = 1024  # secrets whose shares are located together
_NO_KIND = 255  # of the record that ends a search
_RECOVERY_BATCH = 2**13  # shares recovered together: about 2 MB, which stay in the cache


class RecoveredSecrets:
    """The secrets that the revealed shares give: seeds of survivors, mask keys of dropouts.

    The records of all messages are sorted by holder and then dealer. The first t shares of each
    secret are used, and secrets are recovered in batches: one by one they take four times as long.
    Nothing is checked here: each message must have passed `check_unmasking_shares`, and the caller
    must compare each secret with its commitment. `threshold` is the session's t.
    """

    def __init__(self, request: UnmaskingRequest, messages: Mapping[int, UnmaskingShares]) -> None:
        self._transcript = request.transcript
        self._requested_kinds = request.requested_kinds
        self.threshold = request.transcript.session.parameters.threshold
        bodies = [messages[holder].signed_bytes() for holder in sorted(messages)]
        records = np.frombuffer(b"".join(bodies), REVEALED_SHARE_DTYPE)
        counts = [len(body) // REVEALED_SHARE_DTYPE.itemsize for body in bodies]
        n = request.transcript.session.n
        # The search key of a record is its holder times n plus its dealer. A last key, larger than
        # any record's, ensures that a search always ends at a key.
        self._search_keys = np.append(
            np.repeat(np.array(sorted(messages), np.int64) * n, counts), n * n
        )
        self._search_keys[:-1] += records["dealer"]
        self._shares = records["share"]
        self._kinds = np.append(records["kind"], np.uint8(_NO_KIND))
        self._secrets = dict(self._recover())

    def secret(self, dealer: int) -> bytes | None:
        """Return the secret that the first t shares of `dealer` give, None with fewer shares."""
        return self._secrets.get(dealer)

    def shares(self, dealer: int) -> dict[int, bytes]:
        """Return all revealed shares of the secret of `dealer`, by number."""
        places, exists = self._locate(
            np.array([dealer]), np.array([[dealer, *self._transcript.holders(dealer)]])
        )
        numbers = (np.flatnonzero(exists) + 1).tolist()
        return dict(zip(numbers, self._shares[places[exists]].tolist(), strict=True))

    def _recover(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield each dealer with at least t revealed shares, and the secret they give."""
        t, all_dealers = self.threshold, self._transcript.dealers
        all_holders = self._transcript.selected_holders
        for start in range(0, len(all_dealers), _SEARCH_BATCH):
            dealers = all_dealers[start : start + _SEARCH_BATCH]
            holders = np.column_stack([dealers, all_holders[start : start + _SEARCH_BATCH]])
            places, exists = self._locate(dealers, holders[:, :t])
            if not exists.all():  # a holder dropped out
                places, exists = self._locate(dealers, holders)
            counts = exists.cumsum(axis=1, dtype=np.int32)
            enough = counts[:, -1] >= t
            is_used = (exists & (counts <= t))[enough]
            used = places[enough][is_used].reshape(-1, t)
            numbers = np.nonzero(is_used)[1].reshape(-1, t) + 1
            dealers, batch_size = dealers[enough], _RECOVERY_BATCH // t
            for first in range(0, len(dealers), batch_size):
                batch = slice(first, first + batch_size)
                shares = self._shares[used[batch]].view(np.uint8).reshape(-1, t, SHARE_BYTES)
                secrets = recover_many(shares, numbers[batch])
                yield from zip(dealers[batch].tolist(), secrets, strict=True)

    def _locate(
        self, dealers: NDArray[np.int64], holders: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the index of each holder's record about each dealer, and whether it exists.

        Row i of `holders` has the holders of dealer i.
        """
        keys = (holders * len(self._requested_kinds) + dealers[:, np.newaxis]).ravel()
        # In the order of the keys the search reads memory once, from front to back.
        slots = holders.ravel().astype(np.min_scalar_type(len(self._requested_kinds)))
        order = np.argsort(slots, kind="stable")
        places = np.empty(len(order), np.intp)
        places[order] = np.searchsorted(self._search_keys, keys[order])
        kinds = np.repeat(self._requested_kinds[dealers], holders.shape[1])
        exists = (self._search_keys[places] == keys) & (self._kinds[places] == kinds)
        return places.reshape(holders.shape), exists.reshape(holders.shape)


@dataclass(frozen=True, slots=True)
class SumMessages:
    """The messages that a sum is unmasked with, each checked when it arrived.

    Key shares and answers are by dealer, unmasking shares by holder.
    """

    key_shares: Mapping[int, KeyShares]
    unmasking_shares: Mapping[int, UnmaskingShares]
    answers: Mapping[int, Answers] = field(default_factory=dict)

    def revealed(self, request: UnmaskingRequest) -> Mapping[int, UnmaskingShares]:
        """Return the requested shares by holder: revealed by itself, or answered by the dealer."""
        revealed = dict(self.unmasking_shares)
        for dealer in self.answers.keys() & request.transcript.share_commitments.keys():
            answers, survived = self.answers[dealer], dealer in request.survivors
            for holder in answers.key_shares:
                message = revealed.get(holder, UnmaskingShares({}, {}))
                seeds, keys = dict(message.seed_shares), dict(message.key_shares)
                if survived:
                    seeds[dealer] = answers.seed_shares[holder]
                else:
                    keys[dealer] = answers.key_shares[holder]
                revealed[holder] = UnmaskingShares(seeds, keys)
        return revealed


@dataclass(frozen=True, slots=True)
class UnmaskedSum:
    """The sum of the survivors' vectors, and the participants blamed: what each did, by slot."""

    total: Vector
    blamed: Mapping[int, str]


def unmask(
    request: UnmaskingRequest, ring: Ring, messages: SumMessages, masked_sum: Vector
) -> UnmaskedSum:
    """Return the sum of the survivors' vectors, given the sum of their masked vectors.

    It runs in one thread: two threads that share the interpreter took a third longer.

    Raises:
        RecoveryError: if a secret that the sum needs cannot be recovered. It is the error of the
            first such secret, and blames all participants with detected false shares.
        ValueError: if there are fewer survivors than the quorum.
    """
    if len(request.survivors) < request.transcript.session.quorum:
        raise ValueError(f"{len(request.survivors)} survivors are fewer than a quorum")
    unmasking = Unmasking(request, ring, messages, masked_sum)
    failure = None
    for slots, remove_masks in (
        (request.survivors, unmasking.remove_self_mask),
        (request.dropouts, unmasking.remove_pairwise_masks),
    ):
        for slot in sorted(slots):
            try:
                remove_masks(slot)
            except RecoveryError as error:  # continue, so that all false shares are detected
                failure = failure or error
                unmasking.has_failed = True
    if failure is not None:
        failure.blamed = unmasking.blamed
        raise failure
    return UnmaskedSum(unmasking.total.lanes, unmasking.blamed)


class Unmasking:
    """A masked sum whose masks are removed one participant at a time; the result is `total`."""

    def __init__(
        self, request: UnmaskingRequest, ring: Ring, messages: SumMessages, masked_sum: Vector
    ) -> None:
        self.total = MaskedVector(ring, masked_sum)
        self.blamed = dict[int, str]()
        self.has_failed = False  # then secrets are not corrected, only false shares detected
        self._request = request
        self._key_shares = messages.key_shares
        self._recovered = RecoveredSecrets(request, messages.revealed(request))

    def remove_self_mask(self, slot: int) -> None:
        """Subtract the mask that a survivor expanded from its seed.

        Raises:
            RecoveryError: if the seed cannot be recovered.
        """
        commitment = self._key_shares[slot].seed_commitment
        seed = self._recover(slot, lambda seed: commit_seed(seed) == commitment)
        stream = self._request.transcript.self_mask_purpose(slot).keystream(seed)
        self.total.subtract(stream)

    def remove_pairwise_masks(self, slot: int) -> None:
        """Remove the masks between a dropout and the survivors.

        Raises:
            RecoveryError: if the mask key of the dropout cannot be recovered.
        """
        transcript = self._request.transcript
        roster, others = transcript.session.roster, self._request.survivors & transcript.graph[slot]
        if not others:
            return  # all its neighbours dropped out, so its masks are in no vector
        public = roster.mask_key(slot)
        pair = KeyPair.of(self._recover(slot, lambda key: KeyPair.of(key).public == public))
        for other in others:
            secret = pair.agree(roster.mask_key(other))
            stream = transcript.pairwise_mask_purpose(slot, other).keystream(secret)
            (self.total.subtract if other < slot else self.total.add)(stream)

    def _recover(self, dealer: int, is_committed: Callable[[bytes], bool]) -> bytes:
        """Return the secret of `dealer` that matches its commitment."""
        secret = self._recovered.secret(dealer)
        if secret is not None and is_committed(secret):
            return secret
        threshold, shares = self._recovered.threshold, self._valid_shares(dealer)
        if len(shares) < threshold:
            what = f"{len(shares)} shares of the {threshold} needed"
            raise RecoveryError(dealer, what, self.blamed)
        secret = recover(dict(islice(shares.items(), threshold)))
        if secret is not None and is_committed(secret):
            return secret
        self.blamed[dealer] = FALSE_DEALER
        corrected = None if self.has_failed else correct_errors(shares, threshold)
        if corrected is None or not is_committed(corrected[0]):
            what = "its shares give another secret than it committed to"
            raise RecoveryError(dealer, what, self.blamed)
        return corrected[0]

    def _valid_shares(self, dealer: int) -> dict[int, bytes]:
        """Return the revealed shares of `dealer` that match their commitments; blame the others."""
        key_shares, survived = self._key_shares[dealer], dealer in self._request.survivors
        slots = (dealer, *self._request.transcript.holders(dealer))
        valid = {}
        for number, share in self._recovered.shares(dealer).items():
            if commit_share(share) == _commitment(key_shares, number, survived=survived):
                valid[number] = share
            else:
                self.blamed[slots[number - 1]] = FALSE_HOLDER
        return valid


def _commitment(key_shares: KeyShares, number: int, *, survived: bool) -> bytes:
    """Return the commitment to share `number` of the secret of a dealer that is requested."""
    if number == 1:
        return key_shares.own_share_commitment
    pair = key_shares.share_pairs[number - 2]
    return pair.seed.commitment if survived else pair.key.commitment
