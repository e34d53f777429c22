"""Whether a SavedModel of somebody else's does more than compute.

A SavedModel is a program: besides arithmetic it may read and write files and, in a Python process, call what is there.
TensorFlow runs what it finds (docs/reliability.md). What is loaded here is looked through first.
"""

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from data.graph_tokenization import SERVING_TEXT_OPS

# What exports of ours are made of. Each of these gives tensors for the tensors it is given, or calls a function that is
# looked through itself. Any other op is refused: TensorFlow has over a thousand, and new ones with every version, and
# nobody has a list of those that read or write files.
_ON_NUMBERS = """
    Add AddV2 All Any ArgMax BatchMatMulV2 BiasAdd BitwiseAnd BitwiseOr Cast Cumprod Cumsum DenseBincount Einsum Equal
    Erf Exp FloorDiv FloorMod Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr MatMul Max Maximum
    Mean Minimum Mul Neg NotEqual Pow Prod RealDiv Relu RightShift Rsqrt SegmentMax SegmentMean SegmentMin Sigmoid
    Softmax Square SquaredDifference Sub Sum Tanh TopKV2 Unique UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum
"""
_ON_SHAPES = """
    BroadcastTo ConcatV2 Const EnsureShape ExpandDims Fill GatherNd GatherV2 Identity IdentityN InvertPermutation
    LowerBound OneHot OnesLike Pack Pad Placeholder RaggedGather RaggedRange RaggedTensorToTensor Range Reshape
    ReverseV2 Select SelectV2 Shape Size Split Squeeze StopGradient StridedSlice TensorListConcatV2
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterUpdate Tile
    Transpose Unpack UpperBound Where ZerosLike
"""
_ON_STRINGS = """
    ParseExampleV2 ShardedFilename StaticRegexFullMatch StaticRegexReplace StringJoin StringLength StringSplitV2
    UnicodeDecode UnicodeEncode UnicodeTranscode
"""
_ON_VARIABLES = "AssignVariableOp DisableCopyOnRead ReadVariableOp VarHandleOp VarIsInitializedOp"
_CALLS = "Assert If NoOp PartitionedCall StatefulPartitionedCall StatelessIf While"
HARMLESS_OPS = SERVING_TEXT_OPS.union(
    *(names.split() for names in (_ON_NUMBERS, _ON_SHAPES, _ON_STRINGS, _ON_VARIABLES, _CALLS))
)

# What saves the variables of a model and reads them again, in two functions that every SavedModel has for that.
_SAVING_OPS, _RESTORING_OPS = frozenset({"SaveV2", "MergeV2Checkpoints"}), frozenset({"RestoreV2"})

_MOST_NAMES = 10  # of ops in an error


def check_harmless(saved_model_dir: str | Path) -> None:
    """Raises where a SavedModel has an op that exports of ours have not, or reads a file that is not of the model.

    Its variables are read as it is loaded, by a function that gets their place from who loads it and is called by
    nobody else. The like of it saves them, and never runs here.
    """
    path = Path(saved_model_dir) / "saved_model.pb"
    try:
        proto = SavedModel.FromString(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no {path}. A SavedModel is the directory of a version.") from None
    except DecodeError as error:
        raise ValueError(f"{path} is not a SavedModel: {error}.") from error
    found = sorted({op for meta_graph in proto.meta_graphs for op in _foreign_ops(meta_graph)})
    if found:
        raise ValueError(
            f"{path} has ops that may reach beyond its tensors: {', '.join(op[:60] for op in found[:_MOST_NAMES])}. "
            "Models that are exported here have none of them: do not load it unless you know who made it."
        )
    for meta_graph in proto.meta_graphs:
        for asset in meta_graph.asset_file_def:
            _check_asset(asset.filename, path)


def _check_asset(name: str, path: Path) -> None:
    place = path.parent / "assets"
    if not (place / name).resolve().is_relative_to(path.parent.resolve()):
        raise ValueError(f"{path} names the asset {name[:60]!r}, which is not in {place}. Do not load it.")


def _foreign_ops(meta_graph: MetaGraphDef) -> Iterator[str]:
    saving = _function_of_saver(meta_graph, meta_graph.saver_def.save_tensor_name)
    restoring = _function_of_saver(meta_graph, meta_graph.saver_def.restore_op_name)
    yield from {node.op for node in meta_graph.graph_def.node} - HARMLESS_OPS
    for function in meta_graph.graph_def.library.function:
        ops = {node.op for node in function.node_def} - HARMLESS_OPS
        name = function.signature.name
        if name == saving != restoring:  # what restores runs whenever the model is loaded
            ops -= _SAVING_OPS
        if name == restoring and _restores_what_it_is_told(function):
            ops -= _RESTORING_OPS
        yield from ops


def _function_of_saver(meta_graph: MetaGraphDef, tensor_name: str) -> str | None:
    """The function that a node of the saver calls; None where anything else could run it, or choose its file."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    node = nodes.get(tensor_name.split(":")[0])
    file_name = nodes.get(node.input[0].split(":")[0]) if node is not None and node.input else None
    # A placeholder has no value but the one that is given by who runs the graph.
    if file_name is None or file_name.op != "Placeholder":
        return None
    if _is_input(node.name, meta_graph) or any(_is_served(one.name, meta_graph) for one in (node, file_name)):
        return None
    # The name of the function stands where it is defined and where the node calls it. Any third place may be a call,
    # too: by a node, a function, a gradient or an object.
    function = node.attr["f"].func.name
    num_mentions = meta_graph.SerializeToString().count(function.encode())
    return function if num_mentions == 2 else None


def _is_input(name: str, meta_graph: MetaGraphDef) -> bool:
    """Whether a node runs before another."""
    return any(name == given.lstrip("^").split(":")[0] for node in meta_graph.graph_def.node for given in node.input)


def _is_served(name: str, meta_graph: MetaGraphDef) -> bool:
    """Whether what runs or feeds nodes as a model is loaded or asked has the name of one: in whatever part of it."""
    parts = [*meta_graph.signature_def.values(), *meta_graph.collection_def.values(), *meta_graph.asset_file_def]
    return any(name.encode() in part.SerializeToString() for part in parts)


def _restores_what_it_is_told(function: FunctionDef) -> bool:
    """Whether all files that a function reads are those of its first argument."""
    first = function.signature.input_arg[0].name if function.signature.input_arg else None
    return all(list(node.input[:1]) == [first] for node in function.node_def if node.op in _RESTORING_OPS)
