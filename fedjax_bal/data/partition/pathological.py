"""A partition where each client holds only a few of the classes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_bal.annotations import Count, checked
from fedjax_bal.data.partition import dealing

_REDRAWS = 20
_CLIENTS_AT_ONCE = 2**16


@checked
def pathological(
    rng: np.random.Generator,
    labels: np.ndarray,
    num_clients: Count,
    classes_per_client: Count | Sequence[Count],
    samples_per_client: Count | None = None,
    form: Literal["rebafl", "niid_bench"] = "rebafl",
) -> list[np.ndarray]:
    """Gives each client only a few of the classes, in one of two ways.

    `"rebafl"`: in turn, each client draws its labels uniformly without replacement and takes the next samples of each
    label, whose rows are in random order. If too few are left, the label starts again at its first row: no client lists
    a row twice, but several clients may share one. Every client gets exactly `samples_per_client` rows, split evenly
    over its labels; the first ones get one more row if they don't divide evenly.

    `"niid_bench"`: client i always owns label i mod C and draws the others; each label's rows are shuffled and split
    evenly over its owners, so clients are disjoint and differ in size. A label without an owner is left out. A label
    with fewer rows than owners goes to the owners with the fewest rows, so a client may then hold fewer classes than
    asked for; no client is ever left without rows.

    Args:
        rng: source of randomness.
        labels: `Int[D]`; C is the number of different ones.
        num_clients: N.
        classes_per_client: the number of labels that each client holds, or a sequence of such numbers that the clients
            cycle through (`(2, 2, 3, 3, 5)`: client 5 is like client 0).
        samples_per_client: rows of each client, form `"rebafl"` only; D // N by default.
        form: `"rebafl"` or `"niid_bench"`.

    Returns:
        N arrays of row numbers.

    Raises:
        ValueError: more classes per client than there are, more rows of a label than it has, fewer rows than classes,
            clients for which no row is found, or invalid arguments.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> parts = pathological(np.random.default_rng(0), labels, 20, 2)
        >>> [len(np.unique(labels[rows])) for rows in parts] == [2] * 20
        True

    References:
        Form "rebafl": ReBaFL, section on the experimental setup. Form "niid_bench": Li, Diao, Chen, He: Federated
        Learning on Non-IID Data Silos, 2022, "#C=k"; there owners late in the order may be left without rows.
    """
    by_class, sizes = dealing.rows_by_class(labels)
    classes = classes_of_clients(classes_per_client, num_clients, len(sizes))
    if form == "niid_bench":
        if samples_per_client is not None:
            raise ValueError(
                f"samples_per_client={samples_per_client}; form 'niid_bench' splits whole labels: omit it."
            )
        return _split_over_owners(rng, by_class, sizes, classes)
    samples = len(labels) // num_clients if samples_per_client is None else samples_per_client
    if samples < classes.max():
        given = f"{len(labels)} rows for {num_clients} clients"
        if samples_per_client is not None:
            given = f"samples_per_client={samples}"
        raise ValueError(f"{given}: {samples} rows can't hold {classes.max()} classes; use fewer clients.")
    if num_clients * samples > dealing.MAX_ROWS:
        raise ValueError(f"{num_clients} clients x {samples} rows; at most {dealing.MAX_ROWS} rows in all.")

    shares = {number: dealing.even_sizes(samples, number) for number in set(classes.tolist())}
    for share in shares.values():
        # A client needs as many labels as its share has entries, each with at least the smallest entry, and enough
        # labels with a row more for the larger entries.
        for need, count in ((share.min(), len(share)), (share.max(), int((share == share.max()).sum()))):
            enough = int((sizes >= need).sum())
            if enough < count:
                raise ValueError(
                    f"a client with {len(share)} classes and {samples} rows needs {count} labels with at least {need} "
                    f"rows each, but only {enough} have as many; use fewer samples per client or more classes per "
                    "client."
                )
    chosen = _draw_labels(rng, sizes, classes, shares)
    cursors = [0] * len(sizes)
    takes = []
    limits = sizes.tolist()
    begins = (np.cumsum(sizes) - sizes).tolist()
    lists = {number: share.tolist() for number, share in shares.items()}
    for number, picked in zip(classes.tolist(), chosen.tolist(), strict=True):
        for label, share in zip(picked, lists[number], strict=False):
            if cursors[label] + share > limits[label]:
                cursors[label] = 0
            takes.append(begins[label] + cursors[label])
            cursors[label] += share
    lengths = np.concatenate([shares[number] for number in classes.tolist()])
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # The last rows of a label may go to no client, so rows are shuffled.
    rows = np.concatenate(dealing.shuffled(rng, by_class))
    taken = rows[np.repeat(np.asarray(takes), lengths) + within]
    return dealing.split_at_sizes(taken, np.full(len(classes), samples))


def classes_of_clients(classes_per_client: int | Sequence[int], num_clients: int, num_present: int) -> np.ndarray:
    """Returns each client's number of labels, `Int[N]`, from one number or several that the clients cycle through."""
    classes = np.resize(np.asarray(classes_per_client), num_clients)
    if classes.max() > num_present:
        raise ValueError(
            f"classes_per_client={classes_per_client!r}, but only {num_present} classes are present; use as many or "
            "fewer."
        )
    return classes


def _draw_labels(
    rng: np.random.Generator, sizes: np.ndarray, classes: np.ndarray, shares: dict[int, np.ndarray]
) -> np.ndarray:
    """Draws distinct labels for each client, `Int[N, most classes]`; only the first `classes[i]` of row i are used.

    Only labels with enough rows are drawn. Labels with enough rows for the smaller share but not for the larger one are
    moved behind those that can fill the larger shares; usually there are none.
    """
    slots = int(classes.max())
    chosen = np.empty((len(classes), slots), np.int64)
    for begin in range(0, len(classes), _CLIENTS_AT_ONCE):
        part = slice(begin, begin + _CLIENTS_AT_ONCE)
        words = rng.random((len(classes[part]), len(sizes)))
        for number, share in shares.items():
            small = share.min()
            large = share.max()
            mine = np.flatnonzero(classes[part] == number)
            order = np.argsort(np.where(sizes >= small, words[mine], 2.0), axis=1)
            short = np.cumsum(sizes[order] >= large, axis=1) - 1
            fits = (sizes[order] >= large) & (short < (share == large).sum())
            order = np.take_along_axis(order, np.argsort(~fits, axis=1, kind="stable"), axis=1)
            chosen[begin + mine] = order[:, :slots]
    return chosen


def _split_over_owners(
    rng: np.random.Generator, by_class: list[np.ndarray], sizes: np.ndarray, classes: np.ndarray
) -> list[np.ndarray]:
    """Draws form "niid_bench": repeats until every client has a row, or else gives each a label that has one."""
    dealing.check_clients_below_rows(len(classes), int(sizes.sum()))
    by_class = dealing.shuffled(rng, by_class)
    for _ in range(_REDRAWS):
        owners, main = draw_owners(rng, classes, len(sizes))
        counts = _divide(owners, main, sizes)
        if (counts.sum(axis=1) > 0).all():
            break
    else:
        feeders = _feeders(classes, main, sizes)
        # Each client's feeder becomes one of its labels, in place of one that it doesn't own by position.
        for client in np.flatnonzero(~owners[np.arange(len(main)), feeders]):
            others = np.flatnonzero(owners[client])
            owners[client, others[others != main[client]][0]] = False
            owners[client, feeders[client]] = True
        counts = _divide(owners, main, sizes, feeders)
    return dealing.deal_by_class(by_class, counts.T)


def _feeders(classes: np.ndarray, main: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Finds a label for each client, `Int[N]`, so that no label has more clients than rows.

    It is the label that the client owns by position as long as that one has rows; clients with no other label come
    first. There is one for all others, since there are no more clients than rows.
    """
    left = sizes.copy()
    feeders = main.copy()
    waiting = []
    for client in np.argsort(classes, kind="stable"):
        if left[main[client]] > 0:
            left[main[client]] -= 1
        elif classes[client] == 1:
            raise ValueError(
                f"a label with {sizes[main[client]]} rows is the only one of more clients than that, some of which "
                f"would be left without rows; use fewer than {len(classes)} clients or more classes per client."
            )
        else:
            waiting.append(client)
    feeders[waiting] = np.repeat(np.arange(len(sizes)), left)[: len(waiting)]
    return feeders


def draw_owners(rng: np.random.Generator, classes: np.ndarray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws the owners of labels, `Bool[N, C]`: client i owns label i mod C, and others at random, `classes[i]` in all.

    Also returns the label that each client owns by position, `Int[N]`.
    """
    main = np.arange(len(classes)) % num_labels
    words = rng.random((len(classes), num_labels))
    words[np.arange(len(classes)), main] = -1.0
    rank = np.argsort(np.argsort(words, axis=1), axis=1)
    return rank < classes[:, None], main


def _divide(owners: np.ndarray, main: np.ndarray, sizes: np.ndarray, feeders: np.ndarray | None = None) -> np.ndarray:
    """Divides the rows of each label among its owners, `Int[N, C]`.

    Labels with a row for every owner come first; the others go to clients that they feed, then to those with the fewest
    rows so far, then to those that own the label by position, so that clients without rows are avoided if possible.
    """
    counts = np.zeros(owners.shape, np.int64)
    demand = owners.sum(axis=0)
    fed = np.full(len(main), -1) if feeders is None else feeders
    for label in np.argsort(sizes < demand, kind="stable"):
        members = np.flatnonzero(owners[:, label])
        if sizes[label] < demand[label]:
            held = counts[members].sum(axis=1)
            members = members[np.lexsort((members, main[members] != label, held, fed[members] != label))]
        if len(members):
            counts[members, label] = dealing.even_sizes(int(sizes[label]), len(members))
    return counts
