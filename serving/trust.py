"""Whether a SavedModel of somebody else's does more than compute.

A SavedModel is a program: besides arithmetic it may read and write files and, in a Python process, call what is there.
TensorFlow runs what it finds (docs/reliability.md). What is loaded here is looked through first.
"""

from collections.abc import Iterable
from pathlib import Path

from tensorflow.core.protobuf import saved_model_pb2

# Ops that reach beyond the tensors they are given: files, other processes, Python, the network.
_OUTSIDE_OPS = frozenset(
    [
        "PyFunc",
        "PyFuncStateless",
        "EagerPyFunc",
        "ReadFile",
        "WriteFile",
        "MatchingFiles",
        "PrintV2",
        "Print",
        "LogSummary",
        "WriteSummary",
        "WriteScalarSummary",
        "WriteGraphSummary",
        "WriteRawProtoSummary",
        "CreateSummaryFileWriter",
        "CreateSummaryDbWriter",
        "WholeFileReader",
        "WholeFileReaderV2",
        "TextLineReader",
        "TextLineReaderV2",
        "TFRecordReader",
        "TFRecordReaderV2",
        "FixedLengthRecordReader",
        "FixedLengthRecordReaderV2",
        "TextLineDataset",
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "CSVDataset",
        "CSVDatasetV2",
        "SqlDataset",
        "LMDBDataset",
        "LMDBReader",
        "SaveDataset",
        "SaveDatasetV2",
        "LoadDataset",
        "SnapshotDataset",
        "SnapshotDatasetV2",
        "CacheDataset",
        "CacheDatasetV2",
        "DataServiceDataset",
        "DataServiceDatasetV2",
        "DataServiceDatasetV3",
        "DataServiceDatasetV4",
        "RpcCall",
        "RpcServer",
        "DebugIdentity",
        "DebugIdentityV2",
        "DebugIdentityV3",
        "LoadLibrary",
        "ImmutableConst",
        "GenerateVocabRemapping",
        "LoadAndRemapMatrix",
        "Save",
        "SaveSlices",
        "SaveV2",
        "MergeV2Checkpoints",
    ]
)


def check_harmless(saved_model_dir: str | Path) -> None:
    """Raises where a SavedModel has an op that reads or writes files, prints, or calls Python, other than to be saved.

    Every SavedModel has functions that save its variables; what is reached by nothing but its saver is let pass, since
    nobody here calls that. Tables from the model's own assets and its variables are read as it is loaded.
    """
    path = Path(saved_model_dir) / "saved_model.pb"
    try:
        proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no {path}. A SavedModel is the directory of a version.") from None
    except Exception as error:  # of the protobuf library, which has several
        raise ValueError(f"{path} is not a SavedModel: {error}.") from error
    found = sorted({op for graph in proto.meta_graphs for op in _ops_beside_saver(graph)} & _OUTSIDE_OPS)
    if found:
        raise ValueError(
            f"{path} has ops that reach beyond its tensors: {', '.join(found)}. A model that only answers needs "
            "none of them: do not load it unless you know who made it."
        )
    for graph in proto.meta_graphs:
        for asset in graph.asset_file_def:
            _check_asset(asset.filename, path)


def _check_asset(name: str, path: Path) -> None:
    place = path.parent / "assets"
    if not (place / name).resolve().is_relative_to(path.parent.resolve()):
        raise ValueError(f"{path} names the asset {name[:60]!r}, which is not in {place}. Do not load it.")


def _ops_beside_saver(meta_graph) -> set[str]:
    library = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    saver = meta_graph.saver_def
    of_saver = {name.split(":")[0] for name in (saver.save_tensor_name, saver.restore_op_name)}
    nodes = meta_graph.graph_def.node
    only_saved = _reached([node for node in nodes if node.name in of_saver], library)
    others = [node for node in nodes if node.name not in of_saver]
    for name, function in library.items():
        if name not in only_saved:
            others += function.node_def
    called = _reached(others, library)
    for name in called:
        others += library[name].node_def
    return {node.op for node in others}


def _reached(nodes: Iterable, library) -> set[str]:
    """The functions that nodes call, and those that these call."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        names = {node.op} | {value.func.name for value in node.attr.values()}
        names |= {func.name for value in node.attr.values() for func in value.list.func}
        for name in (names & library.keys()) - found:
            found.add(name)
            waiting += library[name].node_def
    return found
