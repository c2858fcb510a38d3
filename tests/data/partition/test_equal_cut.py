import numpy as np
import pytest
import scipy.stats

from fedjax_bal.data.partition import equal_cut_dirichlet

LABELS = np.repeat(np.arange(5), [300, 250, 200, 150, 100])


def literal(rng, labels, clients, alpha):
    """The procedure of FedDF's code and its cut, row by row; returns the counts of each client."""
    rows = rng.permutation(len(labels))
    pieces, line = -(-clients // 10), []
    for piece in range(pieces):
        step = int(10 / clients * len(rows))
        own = rows[piece * step : len(rows) if piece == pieces - 1 else (piece + 1) * step]
        members = min(10, clients - 10 * piece)
        least = -1
        while least < int(0.5 * len(own) / members):
            held = [[] for _ in range(members)]
            for label in range(labels.max() + 1):
                of_class = [row for row in own if labels[row] == label]
                shares = rng.dirichlet([alpha] * members)
                shares = np.array(
                    [share * (len(one) < len(own) / members) for share, one in zip(shares, held, strict=True)]
                )
                ends = (np.cumsum(shares / shares.sum()) * len(of_class)).astype(int)[:-1]
                for one, more in zip(held, np.split(np.array(of_class, int), ends), strict=True):
                    one.extend(more.tolist())
            least = min(map(len, held))
        line += [row for one in held for row in one]
    parts = np.array_split(np.array(line), clients)
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("clients", [20, 14])
def test_it_has_the_law_of_the_code(clients):
    def ours(seed):
        parts = equal_cut_dirichlet(np.random.default_rng(seed), LABELS, clients, 0.5)
        return np.stack([np.bincount(LABELS[rows], minlength=5) for rows in parts])

    here = np.stack([ours(seed) for seed in range(30)])
    there = np.stack([literal(np.random.default_rng(100 + seed), LABELS, clients, 0.5) for seed in range(30)])
    assert here.sum(axis=2).tolist() == there.sum(axis=2).tolist()
    for measure in (lambda counts: counts.max(axis=2), lambda counts: (counts > 0).sum(axis=2), lambda c: c[..., 0]):
        # Clients of one draw depend on each other: one number of each draw.
        for client in (0, 3, clients - 1):
            assert scipy.stats.ks_2samp(measure(here)[:, client], measure(there)[:, client]).pvalue > 0.005


def test_a_client_has_the_end_of_one_member_and_the_beginning_of_the_next():
    parts = equal_cut_dirichlet(np.random.default_rng(0), LABELS, 10, 0.2)
    falls = [int((np.diff(LABELS[rows]) < 0).sum()) for rows in parts]
    assert max(falls) >= 1 and sum(falls) <= 9  # classes ascend within a member, of whom there are ten
