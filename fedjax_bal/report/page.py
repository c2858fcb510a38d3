"""The pages of a run and of a comparison of runs: HTML files that open without a network and print well."""

import os
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.config import Sections, leaves, name_in_results, nearest_choices, without_defaults
from fedjax_bal.files import check_replaceable, write_atomically
from fedjax_bal.lab import FolderError, RunFolder, RunRecord, SweepFolder, training_line, writing
from fedjax_bal.metrics import MethodSummary, SeededDraw
from fedjax_bal.report import sweep_results as sweeps
from fedjax_bal.report.labels import NO_NAMES, check_names, display_name, entries, labels_of, renamed, with_labels
from fedjax_bal.report.markup import Page, Picture, definitions, folded, note, reproduction
from fedjax_bal.report.published import (
    PaperComparison,
    changes_from_paper,
    paper_comparison_of_run,
    paper_tables,
    published_by_metric,
)
from fedjax_bal.report.tables import (
    by_client,
    comparison,
    details,
    encoded,
    failed,
    remarks,
    statistics,
    summarise_group,
)
from fedjax_bal.report.wording import (
    LONGEST_NAME,
    flat,
    join_some,
    plural,
    printable,
    table_notes,
    three_digits,
    verdict,
)

# Matplotlib is imported late, with the gallery: importing it takes longer than most commands run.

_MOST_RUNS = 20
_MOST_LINES = 20
_LONGEST_LINE = 1000
_MOST_MISSING = 8
_MOST_DIFFERENCES = 60
_OF_DATA = ("dataset", "partition", "partition_seeds", "auxiliary", "evaluation.validation", "evaluation.client_test")
_DOTS_PER_INCH = 300


def build(folder: str | os.PathLike[str]) -> Path:
    """Writes `report.html`, `plots/*.svg` and `tables.csv` and `.tex` into a run folder; returns the page's path.

    The page depends only on the folder's content: the same folder gives the same bytes. Each file is replaced
    atomically, so that readers never see half a file. If the run is unfinished, the page says so.

    Raises:
        FolderError: a file is missing or damaged, or the folder can't be written to.
    """
    from fedjax_bal.report import gallery

    files = RunFolder(Path(folder))
    run = read_run(files.path)
    paper = paper_comparison_of_run(run.config, summarise_group(run.summary["runs"]), finished=is_finished(run))
    page = page_of_run(run, gallery.to_pictures(gallery.run_figures(run)), paper)
    with writing(files.path, "make the folder writable, and let `plots` be a folder in it"):
        return files.write_page(page.html(), page.documents(), page.tables())


def read_run(folder: Path, names: Mapping[str, str] = NO_NAMES) -> RunRecord:
    """Reads a run folder, with the methods' names in reports; `names` has other ones, by the names in results.

    Raises:
        FolderError: a file is missing or damaged.
    """
    run = RunFolder(folder).read()
    run = run._replace(config=with_labels(run.config, names))
    labels = labels_of(run.config)
    return renamed(run, lambda method: labels.get(method, method))


def read_all(folders: Sequence[Path], names: Mapping[str, str]) -> RunRecord | sweeps.Results:
    """Reads a run, the joined runs of several folders, or a sweep; `names` as in `read_run`.

    Raises:
        FolderError: a file is missing or damaged, or the runs can't be compared.
        ValueError: `names` has a name that no method has, or gives one to several methods.
    """
    if len(folders) == 1 and SweepFolder(folders[0]).exists():
        results = sweeps.read_results(folders[0], names)
        check_names(names, results.labels)
        return results
    run = join(folders, names) if len(folders) > 1 else read_run(folders[0], names)
    configs = run.config.values() if len(folders) > 1 else [run.config]
    check_names(names, {name: label for config in configs for name, label in labels_of(config).items()})
    return run


def build_comparison(folders: Sequence[Path], file: Path) -> Path:
    """Writes a page that compares 2 to 20 run folders with the same classes; returns the page's path.

    Its tables are written next to it, for `comparison.html` as `comparison-tables.csv` and `.tex`.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the file can't be written.
    """
    from fedjax_bal.report import gallery

    joined = join(folders)
    page = page_of_runs(joined, gallery.to_pictures(gallery.run_figures(joined, origins(joined))))
    with writing(file):
        check_replaceable(file)  # checked before its tables are written
        for ending, content in page.tables().items():
            write_atomically(file.with_name(f"{file.stem}-tables.{ending}"), content)
        write_atomically(file, page.html())
    return file


def write_figures(
    folders: Sequence[Path],
    directory: Path,
    width: float,
    names: Mapping[str, str] = NO_NAMES,
    only: Sequence[str] = (),
    note: Callable[[str], object] = warnings.warn,
) -> list[Path]:
    """Writes each figure of a run, of a sweep, or of a comparison of 2 to 20 runs, as PDF and PNG.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        directory: the output folder; created if needed, and files with the same names are replaced.
        width: width of the figures in inches. Figures are laid out for this width, with text of at least 7 points.
        names: as in `read_run`.
        only: the names of figures to write, with or without a number at the end; empty for all.
        note: called with a message if no font has some characters of the labels.

    Returns:
        The PDF files, in page order.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the files can't be written.
        ValueError: there is no figure of a name in `only`.
    """
    from fedjax_bal.report.gallery import run_figures, sweep_figures
    from fedjax_bal.report.plots import as_wide_as, describe_missing_glyphs, to_pdf, to_png

    read = read_all(folders, names)
    if isinstance(read, RunRecord):
        figures = run_figures(read, origins(read) if len(folders) > 1 else None)
    else:
        figures = sweep_figures(read, sweeps.sweep_curves(read, SweepFolder(folders[0])))
    files = []
    with as_wide_as(width):
        drawn = {name: figure for name, _, _, figure in figures}  # drawn here, one by one
    short = {name: re.sub(r"-\d+$", "", name) for name in drawn}
    for name in only:
        if name not in {*short, *short.values()}:
            raise ValueError(f"--only: received {name!r:.80}; {nearest_choices(name, dict.fromkeys(short.values()))}")
    with writing(directory, "choose another folder with --figures"), as_wide_as(width):
        directory.mkdir(parents=True, exist_ok=True)
        drawn = {name: figure for name, figure in drawn.items() if not only or {name, short[name]} & {*only}}
        for name, figure in drawn.items():
            files.append(directory / f"{name}.pdf")
            write_atomically(files[-1], to_pdf(figure))
            write_atomically(directory / f"{name}.png", to_png(figure, _DOTS_PER_INCH))
        if missing := describe_missing_glyphs(drawn.values()):
            note(missing)
    return files


def write_table(
    folders: Sequence[Path], metrics: Sequence[str], *, bold: bool = False, names: Mapping[str, str] = NO_NAMES
) -> Path:
    """Writes `table.tex` into the first folder: chosen metrics of a run, a sweep, or a comparison of runs, for a paper.

    Args:
        folders: the folder of the run or sweep, or those of the runs.
        metrics: names of metrics of whole runs; `_accuracy` and `_bytes` may be left out.
        bold: prints in bold the best mean of each column, and underlines those that don't clearly differ from it.
        names: as in `read_run`.

    Raises:
        FolderError: a folder can't be read, the folders can't be compared, or the file can't be written.
        ValueError: a metric or a method's name is unknown.
    """
    from fedjax_bal.report.latex import find_metrics, paper_table

    chosen = find_metrics(metrics)
    read = read_all(folders, names)
    remark = ""
    subject = ""
    if isinstance(read, RunRecord):
        joined = len(folders) > 1
        subject = setting_in_words(list(read.config.values()) if joined else [read.config], read.summary["runs"])
        name = "Comparison of runs" if joined else read.summary["name"]
        conditions = [("", groups_by_data(read, joined=joined))]
    else:
        name = read.name
        conditions = [
            (sweeps.name_condition(read, here), [sweeps.best_runs(read, here)]) for here in sweeps.list_conditions(read)
        ]
        if read.tuned:
            images = "validation" if read.selection_metric == sweeps.VALIDATION else "test"
            remark = f"Each method has its best setting, selected by accuracy on the {images} images."
    if not any(runs for _, groups in conditions for runs in groups):
        raise FolderError(f"{folders[0]}: no run has been evaluated yet, so there is no table")
    file = folders[0] / "table.tex"
    text = paper_table(conditions, chosen, bold=bold, name=name, subject=subject, remark=remark)
    with writing(file, "make the folder writable"):
        write_atomically(file, encoded(text))
    return file


def write_partition_picture(
    file: Path,
    counts: np.ndarray,
    clients: Sequence[str],
    classes: Sequence[str],
    title: str,
    note: Callable[[str], object] = warnings.warn,
) -> None:
    """Draws the clients' samples of each class, `Int[M, C]`, into a `.png` or `.svg` file.

    `note` is called with a message if a `.png` file lacks characters of the labels, because no font has them.
    """
    from fedjax_bal.report.gallery import partition
    from fedjax_bal.report.plots import describe_missing_glyphs, to_png, to_svg

    figure = partition([(title, counts, clients)], classes)
    if file.suffix.lower() != ".png":
        write_atomically(file, to_svg(figure, title).encode())
        return
    write_atomically(file, to_png(figure))
    if missing := describe_missing_glyphs([figure]):
        note(missing)


def page_of_run(run: RunRecord, pictures: Sequence[Picture], paper: PaperComparison) -> Page:
    """Builds the page of a run."""
    config = run.config
    summary = run.summary
    runs = summary["runs"]
    name = summary["name"]
    compared = compare_run(run)
    finished = is_finished(run)
    unfinished = ""
    if not finished:
        unfinished = (
            "This run is not finished, so the results below are provisional: its runs may be at different rounds."
        )
        missing = missing_runs(config, runs)
        if missing:
            unfinished += f" Still missing: {join_some(missing, _MOST_MISSING)}."
    kicker = [
        "Federated learning report",
        str(_section(config, "dataset").get("name", "data set not recorded")),
        plural(len({entry["method"] for entry in runs}), "method"),
        plural(len({entry["seed"] for entry in runs}), "seed"),
    ]
    tables = []
    if compared.groups:
        notes = " ".join(table_notes(compared.every, partitions=bool(entries(config, "partition_seeds"))))
        tables.append(comparison(compared.groups, summary.get("target_accuracy"), notes))

    machine = [
        *device_and_versions(summary),
        ("client updates per second", _number(summary["client_updates_per_s"], "", "excluding compilation")),
        ("samples per second", _number(summary["samples_per_s"], "", "excluding compilation")),
        ("compilation", _number(summary["compile_s"], " s", "once, not in the rates above")),
        ("whole run", _number(summary["wall_s"], " s", "wall clock")),
    ]
    return Page(
        tab=f"{name}: federated learning report",
        kicker=" · ".join(kicker),
        heading=name,
        warnings=[unfinished, failed(runs), compared.warning],
        answers=[("" if finished else "So far: ") + text for text in compared.answers],
        published=paper_tables(paper),
        comparisons=tables,
        statistics=[row for group in compared.runs for row in statistics(group, published_by_metric(paper))],
        remarks=remarks(summary) if compared.groups else ["No run has been evaluated yet."],
        details=[*details(runs), *by_client(run.clients)],
        pictures=pictures,
        sections=[
            setting_section(config, [*data_lines(summary), *training_lines(config)]),
            ("Machine and speed", definitions(machine)),
            reproduction("run", "config.yaml", config, summary["command"], run.config_text),
        ],
    )


def setting_section(config: Mapping[str, Any], remarks: Sequence[str] = ()) -> tuple[str, str]:
    """Builds the section on the setting: remarks, settings that differ from their defaults, and all settings."""
    differing = {}
    for key, value in config.items():
        kind = Sections.child(key)
        value = without_defaults(kind, value) if kind else value
        if value not in ({}, None):
            differing[key] = value
    changes = changes_from_paper(config)
    setting = [
        *map(note, remarks),
        note("Differences from the paper's configuration: " + "; ".join(changes) + ".") if changes else "",
        note("Settings that differ from their defaults, and the methods."),
        definitions(_setting(differing)),
        folded("All settings", definitions(_setting(config))),
    ]
    return "Setting", "".join(setting)


def device_and_versions(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names the device and the versions of a summary."""
    return [
        ("device", summary.get("device") or "not recorded"),
        ("versions", flat(summary.get("versions", {})) or "not recorded"),
    ]


def page_of_runs(joined: RunRecord, pictures: Sequence[Picture]) -> Page:
    """Builds the page of several joined runs."""
    configs = joined.config
    runs = joined.summary["runs"]
    differing = _differences(configs)[:_MOST_DIFFERENCES]
    compared = compare_run(joined, joined=True)
    # Reasons why the runs can't be compared directly.
    warnings = [] if joined.summary["finished"] else ["Some of these runs are not finished."]
    if len({entry["rounds"] for entry in runs if not entry.get("failure")}) > 1:
        warnings.append("The runs have different numbers of rounds: their final accuracies are not of equal effort.")
    warnings.append(failed(runs))
    warnings.append(compared.warning)
    notes = " ".join(
        table_notes(compared.every, partitions=all(entries(config, "partition_seeds") for config in configs.values()))
    )
    return Page(
        tab="comparison of runs",
        kicker=f"{len(configs)} run folders",
        heading="Comparison of runs",
        warnings=warnings,
        answers=compared.answers,
        comparisons=[comparison(compared.groups, joined.summary["target_accuracy"], notes)],
        statistics=[row for group in compared.runs for row in statistics(group)],
        details=[*details(runs), *by_client(joined.clients)],
        pictures=pictures,
        sections=[("Where the settings differ", definitions(differing) or "<p>Nowhere.</p>")],
    )


def setting_in_words(configs: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> str:
    """Describes data set, partition and rounds, for a caption; empty if they differ between runs or are the user's."""
    from fedjax_bal.data import DATASETS  # imports jax

    phrases = set()
    for config in configs:
        reader = DATASETS.get(str(_section(config, "dataset").get("name")))
        changed = {key for entry in entries(config, "methods") if isinstance(entry, dict) for key in entry}
        if reader is None or reader.origin == "own" or changed & {"dataset", "partition"}:
            return ""
        title, _, which = reader.description.partition(":")[0].partition(", ")
        partition = _section(config, "partition")
        kind = Sections.child("partition")
        differing = without_defaults(kind, partition) if kind else partition
        clients = partition.get("clients")
        scheme = flat({key: value for key, value in differing.items() if key not in ("clients", "seed")})
        scheme = re.sub(r"\.0(?!\d)", "", scheme.replace("dirichlet", "Dirichlet").replace("_", " "))
        phrases.add(", ".join([
            f"{title} ({which})" if which else title,
            f"{plural(clients, 'client')} ({scheme})" if isinstance(clients, int) else scheme,
        ]))  # fmt: skip
    rounds = {run.get("rounds") for run in runs}
    trained = [plural(count, "round") for count in rounds if isinstance(count, int)]
    return ", ".join([*phrases, *trained]) if len(phrases) == len(rounds) == 1 else ""


def groups_by_data(run: RunRecord, *, joined: bool) -> list[list[dict[str, Any]]]:
    """Groups runs by the settings, and the content of files, that determine which client holds which images.

    Methods are compared only with methods on the same data. If each seed has its own partition, the runs' seeds become
    `SeededDraw`s, so that only runs on the same partition are paired.
    """
    data: dict[str, Hashable] = {}  # by method name in the summary
    partitions: dict[str, dict[Any, Any]] = {}  # by method name: partition seed by seed
    for name, config in _configs(run, joined=joined).items():
        base = leaves({key: value for key, value in config.items() if key != "methods"})
        by_seed = dict(zip(entries(config, "seeds"), entries(config, "partition_seeds"), strict=False))
        labels = labels_of(config)
        for entry in entries(config, "methods"):
            whole = base | (leaves(entry) if isinstance(entry, dict) else {})  # a method may override any section
            if by_seed:  # instead of all `partition.seed`; another list of seeds may have some of these pairs, too
                whole |= {"partition_seeds": "by seed", "partition.seed": None}
            of_data = sorted((key, repr(leaf)) for key, leaf in whole.items() if _is_of_data(key))
            of_data += [_digests_of_file(config, whole.get(key)) for key in ("dataset.path", "partition.file")]
            label = labels[name_in_results(entry)]
            method = f"{label} ({name})" if joined else label
            data[method] = tuple(of_data)
            partitions[method] = by_seed
    shared: dict[Hashable, list[dict[str, Any]]] = {}
    for each in run.summary["runs"]:
        by_seed = partitions.get(each["method"], {})
        seed = SeededDraw(by_seed[each["seed"]], each["seed"]) if each["seed"] in by_seed else each["seed"]
        shared.setdefault(data.get(each["method"]), []).append({**each, "seed": seed})
    return list(shared.values())


class Compared(NamedTuple):
    """The methods of a run or of joined runs, in groups that share their data.

    Attributes:
        runs: the runs of each group.
        groups: the summaries of each group, which are compared with its first method.
        warning: says why the groups aren't compared with each other; empty for a single group.
        answers: a verdict on each group.
    """

    runs: list[list[dict[str, Any]]]
    groups: list[list[MethodSummary]]
    warning: str
    answers: list[str]

    @property
    def every(self) -> list[MethodSummary]:
        """The summaries of all groups."""
        return list(chain.from_iterable(self.groups))


def compare_run(run: RunRecord, *, joined: bool = False) -> Compared:
    """Compares the methods of a run or of joined runs, each with those on the same data."""
    shared = groups_by_data(run, joined=joined)
    groups = [summarise_group(group) for group in shared]
    if len(groups) < 2:
        return Compared(shared, groups, "", [verdict(groups[0] if groups else [])])
    configs = _configs(run, joined=joined)
    of_data = lambda key: key.startswith("files.") or _is_of_data(_without_method(key))
    keys = [key for key, _ in _differences(configs) if of_data(key)]
    if not keys:  # methods of one folder differ
        own = [(key, value, known) for known in map(leaves, configs.values()) for key, value in known.items()]
        keys = [key for key, value, known in own if of_data(key) and value != known.get(_without_method(key))]
        keys = list(dict.fromkeys(keys))
    named = f" ({', '.join(keys[:4])}{', ...' * (len(keys) > 4)})" if keys else ""
    compared = "runs" if joined else "methods"
    paired = any(len(group) > 1 for group in groups)
    left = f"are given only between {compared} on the same data" if paired else "are left out"
    warning = (
        f"The {compared} are not on the same data{named}: a difference between them is not due to the methods alone, "
        f"so paired differences {left}."
    )
    among = "Among the {} methods on the data of {}: "
    answers = [
        (among.format(len(group), group[0].method) if len(group) > 1 else "") + verdict(group) for group in groups
    ]
    return Compared(shared, groups, warning, answers)


def _configs(run: RunRecord, *, joined: bool) -> Mapping[str, Mapping[str, Any]]:
    """Returns the configurations by the names of their folders."""
    return run.config if joined else {"": run.config}


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns the keys in which configurations differ, with their values."""
    leaves_of = {name: leaves(config) for name, config in configs.items()}
    differing = []
    for key in dict.fromkeys(key for known in leaves_of.values() for key in known if key != "name"):
        if len({repr(known.get(key)) for known in leaves_of.values()}) > 1:
            differing.append(
                (key, "; ".join(f"{name}: {known.get(key, 'absent')}" for name, known in leaves_of.items()))
            )
    return differing


def _without_method(key: str) -> str:
    return re.sub(r"^methods\.\d+\.", "", key)


def _digests_of_file(config: Mapping[str, Any], file: Any) -> tuple[str, ...]:
    """Returns the recorded SHA-256 of a file; `dataset.path` may be relative to a folder that isn't recorded."""
    files = config.get("files")
    if not isinstance(file, str) or not isinstance(files, dict):
        return ()
    end = os.path.normpath(os.path.join(os.sep, file))
    return tuple(str(digest) for path, digest in files.items() if str(path).endswith(end))


def join(folders: Sequence[Path], names: Mapping[str, str] = NO_NAMES) -> RunRecord:
    """Joins the runs of several folders into one record, with methods named `method (folder)`.

    Its configuration has the configurations of all folders, by name. `names` as in `read_run`.

    Raises:
        FolderError: the folders can't be compared.
    """
    resolved = [folder.resolve() for folder in folders]
    if not 2 <= len(set(resolved)) == len(resolved) <= _MOST_RUNS:
        raise FolderError(
            f"report: received {plural(len(folders), 'folder')}; a comparison takes 2 to {_MOST_RUNS} different ones"
        )
    for folder in folders:
        if SweepFolder(folder).exists():
            raise FolderError(f"{folder}: is a sweep's folder, whose page compares its runs; give only folders of runs")
    records = [read_run(folder, names) for folder in folders]
    classes = records[0].summary["class_names"]
    for folder, run in zip(folders, records, strict=True):
        if run.summary["class_names"] != classes:
            raise FolderError(f"{folder}: has other classes than {folders[0]}; compare runs on one data set")
    # The shortest path suffixes that are distinct.
    longest = max(len(folder.parts) for folder in resolved)
    ends = (["/".join(folder.parts[-depth:]) for folder in resolved] for depth in range(1, longest + 1))
    named = next(named for named in ends if len(set(named)) == len(named))
    joined = [
        renamed(run, lambda method, name=name: f"{method} ({name})") for name, run in zip(named, records, strict=True)
    ]
    targets = {run.summary.get("target_accuracy") for run in records}
    summary = {
        "runs": [entry for run in joined for entry in run.summary["runs"]],
        "class_names": classes,
        "partitions": [part for run in joined for part in run.summary["partitions"]],
        "finished": all(map(is_finished, records)),
        "target_accuracy": targets.pop() if len(targets) == 1 else None,
    }
    lines = [line for run in joined for line in run.lines]
    configs = {name: run.config for name, run in zip(named, records, strict=True)}
    return RunRecord(configs, "", lines, summary, clients=[of_run for run in joined for of_run in run.clients])


def origins(joined: RunRecord) -> dict[str, tuple[str, str]]:
    """Returns the method and folder behind each name of joined runs."""
    pairs = {}
    for name in (run["method"] for run in joined.summary["runs"]):
        folder = next(folder for folder in joined.config if name.endswith(f" ({folder})"))
        pairs[name] = (name.removesuffix(f" ({folder})"), folder)
    return pairs


def _is_of_data(key: str) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in _OF_DATA)


def missing_runs(config: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the configuration's runs that are missing from a summary's `runs` or have rounds left."""
    known = {(run["method"], run["seed"]): run for run in runs}
    base = _section(config, "training").get("rounds")
    phrases = []
    for entry in entries(config, "methods"):
        name = display_name(entry)
        expected = _section(entry, "training").get("rounds", base)
        for seed in (seed for seed in entries(config, "seeds") if isinstance(seed, int)):
            run = known.get((name, seed))
            if run is None:
                phrases.append(f"{name}, seed {seed}")
            elif run.get("stopped_early") is None and not run.get("failure"):
                done = run["rounds"]
                if done is not None and isinstance(expected, int) and done < expected:
                    phrases.append(f"{name}, seed {seed} ({done} of {expected} rounds)")
    return phrases


def is_finished(run: RunRecord) -> bool:
    """Returns whether no run has rounds left; failed runs have none."""
    runs = run.summary["runs"]
    return not missing_runs(run.config, runs) and (run.summary["finished"] or bool(failed(runs)))


def data_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describes how many of the data set's rows and clients the methods use."""
    parts = [part for part in summary["partitions"] if part.get("data")]
    lines = []
    for part in parts[:_MOST_LINES]:
        methods = f" of {', '.join(map(str, part['methods']))}" if len(parts) > 1 else ""
        lines.append(printable(f"Data{methods}: {part['data']}.", _LONGEST_LINE))
    return lines


def training_lines(config: Mapping[str, Any]) -> list[str]:
    """Describes with what the methods train; empty for a configuration that isn't whole."""
    line = training_line(config)
    return [printable(f"Training: {line}.", _LONGEST_LINE)] if line else []


def _setting(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if key not in ("name", "methods", "paper"):
            yield str(key), flat(value)
    for entry in entries(config, "methods"):
        if isinstance(entry, dict):
            rest = {key: value for key, value in entry.items() if key not in ("name", "label")}
            yield f"method {printable(display_name(entry), LONGEST_NAME)}", flat(rest)


def _number(value: float | None, unit: str, remark: str) -> str:
    if value is None:
        return "not recorded"
    return f"{three_digits(value)}{unit} ({remark})"


def _section(config: Any, key: str) -> Mapping[str, Any]:
    section = config.get(key) if isinstance(config, dict) else None
    return section if isinstance(section, dict) else {}
