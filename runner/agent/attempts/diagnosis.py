"""The cause that a program tells at the end of its log, for programs that report none.

The exception that ended the program is what counts, and what it was raised from.  The type of an exception
comes first: a ``KeyError`` is one, whatever it says.  Of a log without a traceback the last line counts, with
what stands directly above it in the form of a message of an error; a word in a line of a log decides nothing.
"""

import re
import signal
from collections.abc import Iterator
from itertools import chain, dropwhile, islice, pairwise, takewhile
from typing import Final, NamedTuple

from runner.core.job.exit_cause import BY_SIGNAL
from runner.core.policy.causes import ExitCause

LAST_LINES: Final = 20
"""Lines at the end of a log without a traceback that are searched for the cause."""

EXCEPTION_LINES: Final = 40
"""Lines at the end of a traceback that are searched for its last one: some exceptions print more below it."""

LOG_TAIL_BYTES: Final = 16 * 1024

MAX_EXCEPTION: Final = 300
"""Characters of the last line of a traceback that are kept."""

MAX_CHAIN: Final = 8
"""Exceptions that the last one was raised from, or while handling which."""


class PythonException(NamedTuple):
    """The last line of a traceback."""

    kind: str  # without its module
    line: str


class Diagnosis(NamedTuple):
    """A cause with what can be done about it; empty: the exception says it."""

    cause: ExitCause
    hint: str
    line: str = ""  # of a log without an exception, the line that tells the cause


class _Sign(NamedTuple):
    cause: ExitCause
    text: re.Pattern[bytes]
    hint: str


def _sign(cause: ExitCause, text: bytes, hint: str) -> _Sign:
    return _Sign(cause, re.compile(text), hint)


_SIGNS: Final = (
    _sign(
        ExitCause.SHARED_MEMORY,
        rb"insufficient shared memory \(shm\)|unable to allocate shared memory ?\(shm\)"
        rb"|DataLoader worker \(pid[^)\n]{0,80}\) is killed by signal: Bus error"
        rb"|unable to (?:write to|open)[^\n]{0,40} </torch_[^\n]{0,200}No space left on device"
        rb"|No space left on device[^\n]{0,200}/dev/shm|/dev/shm[^\n]{0,200}No space left on device"
        rb"|failed to extend /dev/shm/|Error while creating shared memory segment|exceeds /dev/shm size",
        "shared memory (/dev/shm) is full",
    ),
    _sign(
        ExitCause.DISK_FULL,
        rb"\[Errno 28\](?! inotify)|[Nn]o space left on device|os error (?:28|122)\b|\[Errno 122\]"
        rb"|Disk quota exceeded|PytorchStreamWriter failed writing|inline_container[^\n]{0,200}unexpected pos"
        rb"|database or disk is full"
        rb"|\bENOSPC\b|\bEDQUOT\b|\[Errno 27\]|File too large(?! \w)|\d requested and \d+ written"
        rb"|[Nn]ot enough (?:free )?disk space|clear: iostream error",
        "a disk or a quota is full",
    ),
    _sign(
        ExitCause.HOST_OOM,
        rb"(?:java\.lang|ray\.exceptions)\.OutOfMemoryError|due to the node running low on memory"
        rb"|JavaScript heap out of memory|duckdb\.OutOfMemoryException|\(-4:Insufficient memory\)"
        rb"|^ERROR: OutOfMemoryError\(\)",
        "no memory is left for a process; raise resources.memory",
    ),
    _sign(
        ExitCause.DEVICE_OUT_OF_MEMORY,
        rb"OutOfMemoryError|(?i:\b(?:CUDA|cudaMalloc|HIP|MPS|XPU)\b[^\n]{0,200}\bout of memory)"
        rb"|No executable batch size found|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
        rb"|_STATUS_ALLOC(?:ATION)?_FAILED|(?:CUDA_ERROR|hipError)_?Out_?Of_?Memory|BFCArena::AllocateRaw"
        rb"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda runtime error \(2\)|cudaMalloc failed"
        rb"|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|Failed to allocate request for"
        rb"|Memory allocation error on worker|CUFFT_ALLOC_FAILED|than the available KV cache memory"
        rb"|^ValueError: Free memory on device|enough GPU RAM|Out of GPU memory|Dst tensor is not initialized"
        rb"|MemorySpace named \"(?:Cuda|HIP)|Failed to allocate \d+ bytes on device 'cuda"
        rb"|OOM when allocating tensor|ResourceExhaustedError|No available memory for the cache blocks",
        "device out of memory",
    ),
    _sign(
        ExitCause.HOST_OOM,
        rb"^MemoryError|ArrayMemoryError|DefaultCPUAllocator|\[Errno 12\]|[Cc]annot allocate memory"
        rb"|oom_kill event|: Out Of Memory$|std::bad_alloc|[Mm]emory allocation of \d+ bytes failed"
        rb"|[mc]alloc of (?:size )?\d+ failed|cannot allocate vector of size"
        rb"|C error: out of memory|out of memory allocating \d|Killed signal terminated program"
        rb"|exit codes of the workers are \{SIGKILL"
        rb"|DataLoader worker \(pid[^)\n]{0,80}\) is killed by signal: Killed",
        "no memory is left for a process; raise resources.memory",
    ),
    _sign(
        ExitCause.DEVICE_ERROR,
        rb"(?i)uncorrectable (?:nvlink|ecc)|ecc.uncorrectable|double.bit ecc|\bXid\b|fallen off the bus"
        rb"|GPU is lost|GPU_IS_LOST|hardware stack error|cudaErrorECCUncorrectable"
        rb"|cudaErrorHardwareStackError|or a hardware error|HW Exception by GPU"
        rb"|determine the device handle for GPU[^\n]{0,40} Unknown Error"
        rb"|CUDA error: unknown error",
        "a device has failed; the operator can drain it",
    ),
    _sign(
        ExitCause.DEVICE_UNSUPPORTED,
        rb"no kernel image is available|driver (?:on your system )?is too old|driver version is insufficient"
        rb"|forward compatibility was attempted|[Dd]river/library version mismatch"
        rb"|is not compatible with the current PyTorch|cudaErrorInsufficientDriver|SYSTEM_DRIVER_MISMATCH"
        rb"|invalid device function|unsupported display driver|not compiled with CUDA enabled"
        rb"|the provided PTX was compiled"
        rb"|support bf16|only supports? (?:Ampere|Hopper)|with compute capability"
        rb"|_STATUS_\w{0,40}(?:ARCH|VERSION)_MISMATCH|LIBRARY_LOADING_FAILED|cuDNN version incompatibility"
        rb"|TensileLibrary|NoBinaryForGpu|kernel image is invalid|invalid value for --gpu-architecture"
        rb"|cuDNN version too old|Device API cuda is not enabled",
        "the packages of the job do not fit this driver or this device",
    ),
    _sign(
        ExitCause.DEVICE_ASSERT,
        rb"device-side assert triggered|cudaErrorAssert",
        "an index or a label is out of range; env CUDA_LAUNCH_BLOCKING=1 before the command shows where",
    ),
    _sign(
        ExitCause.DEVICE_FAULT,
        rb"illegal memory access|Memory access fault by GPU|HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL)"
        rb"|misaligned address|illegal (?:address|instruction) was encountered"
        rb"|unspecified launch failure|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_LAUNCH_FAILED"
        rb"|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|NOT_SUPPORTED)"
        rb"|CUBLAS_STATUS_INTERNAL_ERROR|miopenStatus(?:Unknown|Internal)Error"
        rb"|the launch timed out|too many resources requested for launch",
        "a kernel has failed; env CUDA_LAUNCH_BLOCKING=1 before the command shows which",
    ),
    _sign(
        ExitCause.PORT_IN_USE,
        rb"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]|Failed to bind to address"
        rb"|server socket has failed to (?:bind|listen)|could not bind to port|Cannot find empty port"
        rb"|[Pp]ort \d+ is (?:already )?in use|no available port",
        "a port is in use; let the program choose a free one (port 0)",
    ),
    _sign(
        ExitCause.RANK_LOST,
        rb"ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage"
        rb"|NCCL communicator|ncclUniqueId|lost communication with|collective operation timeout"
        rb"|Dist(?:Backend|Store|Network)Error"
        rb"|NCCL [Ee]rror|initializing process group|HorovodInternalError|seconds waiting for clients"
        rb"|due to collective timeout|[Ww]ait timeout after"
        rb"|\bSocket Timeout|gloo/transport"
        rb"|Rendezvous(?:Timeout|Connection|Closed)\w*|monitoredBarrier|TCPStore|Barrier timed out"
        rb"|JAX distributed service|stopped sending heartbeats|watchdog hang",
        "a process of the training does not answer the others",
    ),
    _sign(
        ExitCause.DEVICE_UNAVAILABLE,
        rb"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR"
        rb"|No CUDA GPUs are available|no (?:CUDA|ROCm)-capable device|Found no NVIDIA driver"
        rb"|invalid device ordinal"
        rb"|busy or unavailable|CUDA driver initialization failed|CUDA initialization"
        rb"|cudaErrorDevicesUnavailable"
        rb"|initialization error|No HIP GPUs are available|Error 802: system not yet initialized"
        rb"|deserialize object on (?:a )?CUDA device|no platforms that are instances of"
        rb"|accelerator is not available|[Bb]ut your machine only has|No GPU found"
        rb"|No visible GPU (?:devices|is found)|No supported gpu backend|NVMLError_(?:Driver|Library)Not"
        rb"|error from cudaGetDeviceCount|CUDA driver not functional|cuDNN failed to initialize"
        rb"|no supported devices found for platform|No OpenCL device found"
        rb"|libcuda\.so|CUDA unknown error|No devices were found|no GPUs found|Cannot assign a device"
        rb"|can only be used on CUDA"
        rb"|Failed to initialize NVML"
        rb"|MPS client failed|system not yet initialized|communicate with the NVIDIA driver",
        "the program has no usable device; see resources.gpus and runner gpus",
    ),
    _sign(
        ExitCause.NETWORK,
        rb"ProxyError|Tunnel connection failed",
        "no connection through the proxy; see the variables http_proxy and https_proxy",
    ),
    _sign(
        ExitCause.NETWORK,
        rb"(?i)rate limit exceeded|too many requests|(?:HTTP|returned) error:? (?:429|5\d\d)|RateLimitError"
        rb"|Service Unavailable|ServiceException: 5"
        rb"|occurred \((?:5\d\d|SlowDown|ServiceUnavailable|RequestTimeout|InternalError|Throttling)"
        rb"|\b(?:429 Client|5\d\d Server) Error",
        "a service is busy or limits requests; it may answer later, or with a token (secrets)",
    ),
    _sign(
        ExitCause.NETWORK,
        rb"SSLError|SSL: |SSLCertVerificationError|CERTIFICATE_VERIFY_FAILED|SSL certificate problem",
        "the certificate of a service is not trusted; env SSL_CERT_FILE=FILE names others",
    ),
    _sign(
        ExitCause.ACCESS_DENIED,
        rb"\b40[13] (?:GET|HEAD|POST|PUT|DELETE)\b|[Cc]redentials were not found|SignatureDoesNotMatch"
        rb"|password authentication failed|[Aa][Pp][Ii] ?[Tt]oken[^\n]{0,40} invalid|requires an API key"
        rb"|Unable to locate credentials|\bERROR 40[13]:"
        rb"|Expired_?Token|could not read (?:Username|Password)|Authentication failed|denied \(publickey"
        rb"|\b40[13] Client Error|\b401 Unauthorized|\b403 Forbidden|HTTP Error 40[13]|[Gg]ated ?[Rr]epo"
        rb"|RepositoryNotFoundError|Repository Not Found|is not a valid model identifier"
        rb"|Invalid (?:credentials|user token)|[Aa][Pp][Ii][_ -]?[Kk]ey (?:not|is|must)|No API key"
        rb"|AuthenticationError|Token is required|AccessDenied(?!Exception: /)|NoCredentialsError"
        rb"|InvalidAccessKeyId"
        rb"|[Pp]lease log ?in|cannot be (?:found or )?accessed|(?i:error)(?: code)?:? 40[13]\b"
        rb"|Could not find kaggle\.json|ServiceException: 40[13]|Cannot retrieve the public link"
        rb"|occurred \((?:40[13]|Forbidden)\)",
        "a service refuses access; give the job a token (secrets)",
    ),
    _sign(
        ExitCause.NETWORK,
        rb"[Nn]ame resolution|Temporary failure resolving|Name or service not known|No address associated"
        rb"|Failed to resolve|getaddrinfo"
        rb"|[Cc]ould not resolve host|unable to resolve host|from versions: none\)"
        rb"|Connection (?:refused|reset|aborted|timed out|error)|ConnectionError"
        rb"|CONNECTION FAILED|Connection(?:Refused|Reset|Aborted|Lost|Closed)|NewConnectionError"
        rb"|MaxRetryError"
        rb"|URLError|\bdial (?:tcp|udp)\b|\bE(?:AI_AGAIN|NOTFOUND|CONN\w{5,7}|TIMEDOUT|(?:HOST|NET)UNREACH)\b"
        rb"|Network is unreachable|No route to host|Connect(?:ion)?Timeout|ReadTimeout|Read timed out"
        rb"|RemoteDisconnected|RemoteProtocolError|LocalEntryNotFound|couldn't connect to|[Oo]ffline ?[Mm]ode"
        rb"|\[Errno (?:101|104|110|111|113|-2|-3|-5)\]|IncompleteRead|ChunkedEncodingError"
        rb"|Max retries exceeded|NLTK Downloader|Unable to fetch some archives|dns error"
        rb"|^curl: \((?:5|6|7|18|28|35|52|56)\)|Consistency check failed|Could not connect to the endpoint"
        rb"|errors\.CommError|Can't load [^\n]{1,200}\. If you were trying to load it from",
        "no connection; --network outbound, if the operator allows it, or a mount with the data",
    ),
    _sign(
        ExitCause.TOO_MANY_FILES,
        rb"\[Errno 24\]|Too many open files|os error 24|items of ancdata|inotify \w+ limit",
        "too many open files; fewer loader processes, or close what is read",
    ),
    _sign(
        ExitCause.IO_ERROR,
        rb"\[Errno 5\]|Input/output error|os error 5\b|\[Errno 116\]|Stale (?:NFS )?file handle|\[Errno 107\]"
        rb"|Transport endpoint is not connected|\[Errno 121\]|Remote I/O error|disk I/O error|Host is down"
        rb"|\[Errno 112\]",
        "a file system has failed",
    ),
    _sign(
        ExitCause.NOT_PERMITTED,
        rb"\b(?:EACCES|EROFS)\b|AccessDeniedException|\[Errno 13\]|\[Errno 30\]|\[Errno 1\]"
        rb"|Read-only file system|^PermissionError|[Pp]ermission denied"
        rb"|Operation not permitted"
        rb"|attempt to write a readonly database",
        "a path may not be read or written; mounts are read-only unless :rw is added",
    ),
    _sign(
        ExitCause.CHECKPOINT_MISFIT,
        rb"in loading state_dict|size mismatch for |Missing key\(s\) in|Unexpected key\(s\) in"
        rb"|Missing key in checkpoint|loaded state dict|objects could not be loaded\. Example"
        rb"|metadata tree structures do not match"
        rb"|doesn't match the size of optimizer's group|Incompatible keys",
        "the checkpoint is of another model",
    ),
    _sign(
        ExitCause.CHECKPOINT_UNREADABLE,
        rb"Weights only load failed[^\x00]{0,2000}(?:global|[Uu]nsupported class|instantiate)",
        "the file holds more than tensors; torch.load(..., weights_only=False) reads it, if you trust it",
    ),
    _sign(
        ExitCause.CHECKPOINT_UNREADABLE,
        rb"Weights only load failed|UnpicklingError|BadZipFile|BadGzipFile|ZstdError|^zlib\.error|LZMAError"
        rb"|^tarfile\.ReadError|PytorchStreamReader failed|central directory|invalid load key"
        rb"|Ran out of input|SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|unexpected EOF, expected"
        rb"|pickle data was truncated|file signature not found|truncated file|Invalid magic number"
        rb"|not a zip file|magic bytes not found|Compressed file ended before|DataLossError|git lfs pull"
        rb"|Unable to load weights from|INVALID_PROTOBUF|No data left in file|Unexpected EOF in archive"
        rb"|zipfile directory",
        "a file that the program loads is torn, of another format, or a pointer of Git LFS (git lfs pull)",
    ),
    _sign(
        ExitCause.NON_FINITE,
        rb"(?i)(?:loss|grad\w{0,40}|logits|weights?(?! files?\b))\b[^\n]{0,60}"
        rb"\b(?:nan|inf|infinite(?! loop)|non-?finite|not finite)\b"
        rb"|\b(?:nan|inf|infinite(?! loop)|non-?finite|not finite)\b[^\n]{0,60}\b(?:loss|grad)"
        rb"|returned nan values"
        rb"|^FloatingPointError|loss scale already at minimum|probability tensor contains either"
        rb"|to satisfy the constraint[^\n]{0,200}found invalid values:",
        "loss or gradient is not finite",
    ),
    _sign(
        ExitCause.ILLEGAL_INSTRUCTION,
        rb"compiled to use \w+ instructions|Missing required CPU features",
        "the processor lacks an instruction that a package needs",
    ),
    _sign(
        ExitCause.USAGE_ERROR,
        rb"^(?:FATAL )?Flags parsing error|^Could not override '|^Cannot find primary config '"
        rb"|See https://hydra\.cc/docs|(?:^|\n)Available options(?: in '|:)|(?:^|\n)Usage:\s*\n\s"
        rb"|(?:^|\n)Try ['\"`][^\n]{0,200}--help['\"]"
        rb"|^getopt\.GetoptError"
        rb"|^(?:\w+\.)*(?:MissingMandatoryValue|UnrecognizedFlagError|UsageError|NoSuchOption|BadParameter)\b"
        rb"|not used by the HfArgumentParser|^ValueError: Unknown config key"
        rb"|^\xe2\x95\xad\xe2\x94\x80 (?:Unrecognized|Required|Missing|Invalid|Parsing|Error)",
        "the program refuses its arguments",
    ),
)
"""Messages of programs, with the most particular first."""

_OF_LOGIC: Final = frozenset(
    (
        *("ArithmeticError", "AttributeError", "FileExistsError", "ImportError"),
        *("IndentationError", "IndexError", "IsADirectoryError", "JSONDecodeError", "KeyError"),
        *("ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError"),
        *("RecursionError", "StopIteration", "SyntaxError", "TabError", "TypeError", "UnboundLocalError"),
        *("UnicodeDecodeError", "ZeroDivisionError"),
    )
)
"""Exceptions of the program's own logic: their text is not searched."""

_TOLD_BY: Final = {
    "ValueError": frozenset(
        (
            *(ExitCause.ACCESS_DENIED, ExitCause.CHECKPOINT_MISFIT, ExitCause.DEVICE_OUT_OF_MEMORY),
            *(ExitCause.DEVICE_UNAVAILABLE, ExitCause.DEVICE_UNSUPPORTED, ExitCause.DISK_FULL),
            *(ExitCause.NON_FINITE, ExitCause.SHARED_MEMORY, ExitCause.USAGE_ERROR),
        )
    ),
    "FileNotFoundError": frozenset((ExitCause.NETWORK,)),
    "LookupError": frozenset((ExitCause.NETWORK,)),
    "AssertionError": frozenset(
        (ExitCause.DEVICE_UNAVAILABLE, ExitCause.DEVICE_UNSUPPORTED, ExitCause.NON_FINITE)
    ),
}
"""Exceptions that libraries raise for these causes alone; otherwise their text is the program's own."""

_CHILD: Final = re.compile(
    rb"(?:killed by signal: |got signal: |[Ss]ignal [0-9]+ \(|: tasks? [0-9,-]+: |died with <Signals\."
    rb"|with signal "
    rb"|workers are \{|exits? with return ?code = -|exitcode *: -| EXIT STRING: |: line [0-9]+: +[0-9]+ "
    rb"|\*\*\* \[[^]\n]{1,200}\] (?:Error (?=1[2-5][0-9]\b)|(?=[A-Z]))"
    rb"|(?m:^)(?=[A-Z][a-z ]+(?: \(core dumped\))?(?m:$)))(\w+(?: \w+)*)"
)
"""The words of a parent about a child that a signal has ended, and the signal."""

_FIRST: Final = b"Root Cause (first observed failure)"
"""Words of ``torchrun`` before the failure that it has ended the other workers for."""

_NAMED: Final = {
    name.lower(): number
    for number in BY_SIGNAL
    for name in (
        *(str(int(number)), str(128 + number)),
        signal.Signals(number).name,
        signal.Signals(number).name.removeprefix("SIG"),
        signal.strsignal(number) or "",
    )
}
"""Signals by their names, numbers and descriptions."""

CAUSES: Final = frozenset(
    {sign.cause for sign in _SIGNS}
    | {cause for cause, _ in BY_SIGNAL.values()}
    | {ExitCause.NOT_EXECUTABLE, ExitCause.NOT_FOUND}
)
"""The causes that a log can tell."""

_READ_BY_A_SHELL: Final = re.compile(
    rb"([^\s:]{1,200}\.py): (?:line )?[0-9]+: (?:(?:import|from): (?:command )?not found|[Ss]yntax error)"
)
_WORKER_CODE: Final = re.compile(rb"ChildFailedError[^\x00]*\n *exitcode *: ([0-9]+) ")
_NO_SCRIPT: Final = re.compile(
    rb"can't open file '[^'\n]{0,200}': \[Errno 2\]|: No module named |^Fatal error: cannot open file '"
    rb"|^ERROR: could not open file /|^Error: Cannot find module '",
    re.MULTILINE,
)
_USAGE: Final = re.compile(
    rb"(?im)^make: \*\*\* no |^usage(?: of [^\n]{1,200})?:(?:\s|$)"
    rb"|^(?:\S+: )?error: (?:no such|missing|invalid|got unexpected)"
    rb"|^try '[^\n]{0,200}--help'"
    rb"|Error \xe2\x94\x80|^ERROR: (?:Could not consume|The function received no value|Cannot find key)"
)
_UNKNOWN: Final = re.compile(
    r"(?i)unknown|unrecogni[sz]ed|illegal|invalid|not defined|missing|could not|cannot|required|unexpected"
    r"|no such"
)
_USAGE_CODE: Final = 2
_SHORT_USAGE: Final = re.compile(
    rb"^(?i:usage): \S+ (?:[\[<-]|[A-Z]{2})[^\n]*(?:\n[^\n]*){0,8}\Z", re.MULTILINE
)
"""The usage of a program at the end of its log; without one, exit code 2 says that it is one."""

_OF_KERNELS: Final = frozenset(
    (
        ExitCause.DEVICE_FAULT,
        ExitCause.DEVICE_UNAVAILABLE,
        ExitCause.DEVICE_OUT_OF_MEMORY,
        ExitCause.RANK_LOST,
    )
)
"""Causes that other calls tell once an assertion in a kernel has failed."""

_RECORD: Final = re.compile(
    rb"wandb: (?!ERROR)|\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[ T,](?!\S+ (?:ERROR 40|F ))"
    rb"|\[?[0-9]{2}:[0-9]{2}:[0-9]{2}\b"
    rb"| *[0-9]{1,3}%\||srun: error: [^\n]{1,200}: Exited with exit code"
    rb"|make(?:\[[0-9]+\])?: (?:\*\*\* .* Error [0-9]{1,2}$|Leaving)"
    rb"|error Command failed with exit code [0-9]{1,2}\b|ERROR conda\.cli|\++ \S|(?:real|user|sys)\t"
    rb"|\[?(?i:info|warn|warning|debug|trace)\b|\[?[IW][0-9]{4}\b|\[W[^]]*\]|\[[^]\n]{1,40}\] \[[DIW]\]"
)
"""The beginning of a line of a log, which is no part of a message of an error."""

_COMPLAINS: Final = re.compile(
    rb"\s*$|[ \t]|[-=*#]{3}|[\w./+~@-]{1,60}(?:\[[0-9]+\]|\([0-9]*\))?: |(?i:\[?(?:fatal|error|critical)\b)"
    rb"|\[?[EF][0-9]{4}\b|\[[\w /:.#@-]{1,40}\]:?(?: ?\[?E(?:[0-9]{4})?\b| (?i:fatal|error))|terminate called"
    rb"|[0-9-]{10}[ T]\S+ F |[\w./-]{1,60} (?:error|ERR!)|[\w./*()]{1,200}\([^\n]*\)$|runtime stack:"
    rb"|Exception in thread|\}$|Node\.js v[0-9]|batch request: |In |Error in |Calls: |Available options"
    rb"|Loss is "
    rb"|CUDA kernel errors might|For debugging consider|Compile with `TORCH|Exception raised from "
    rb"|Set the environment variable"
    rb"|Stacktrace:|memory allocation of |[0-9]+\+[0-9]+ records|Traceback |thread '"
    rb"|called `Result|goroutine |At: |[\w./+~-]{1,60} noticed that"
    rb"|mpi\w{3,4} |Could not override '|Cannot find primary config '"
    rb"|Memory access fault|\"/|YOUR APPLICATION|This typically refers|/job:|The tasks have crashed"
    rb"|(?:Effective GPU m|M)emory (?:pool )?usage: |See https://|To append to your|Key '|Config search path"
    rb"|Pass --help|Usage:|\xe2[\x94\x95]"
    rb"|\[notice\]|(?i:note|hint|tip)\b|(?:An )?HTTP error|(?:and )?retry |You can |Elapsed: "
)
"""The beginning of a line by which a program says why it ends."""

_WRONG: Final = re.compile(
    rb"(?i)\b(?:\w*error|fatal|fail(?:ed|ure|s)?|cannot|can't|could ?n[o']t|unable|invalid|assertion|panic"
    rb"|abort(?:ed|ing)?|corrupt\w*|exception|denied|missing|not found|no such|smashing|what\(\)|fault|halted"
    rb"|panicked|(?:not|n't) exist|must be|expected|exceed(?:s|ed)|required|refused|too \w+|out of)(?!\w)"
)
"""A line of a log that says that something went wrong; it is shown, and decides nothing."""

_WENT_ON: Final = re.compile(
    rb"(?im)^(?:\|? ?(?:step|epoch|iter|iteration|batch)\W{0,3}[0-9]|retry|resum|continu|skipp)"
)
"""The beginning of a line of a program that has caught an exception and goes on."""

_LOGS_AN_ERROR: Final = re.compile(rb"\[?[0-9]{2,4}[:/-][^\n]{0,80}?\b(?:ERROR|CRITICAL|FATAL)\b")
"""The beginning of a line of a log that has a time and tells an error."""

_RECORDS_WORK: Final = re.compile(
    rb"(?i)\b(?:(?:step|epoch|iter|batch|retry|resum|continu|skipp)\w*|using)\b"
)
"""A word of a line of a log by which a program tells that it goes on."""

_NOT_FINITE: Final = re.compile(rb"(?i)\b(?:nan|inf\w*|non-?finite|not finite)\b")
_STOPS: Final = re.compile(rb"(?i)stop|abort|exit|quit|halt|terminat|diverg")

_TRACEBACK: Final = b"Traceback (most recent call last)"
_IGNORED: Final = re.compile(
    rb"^Exception ignored (?!in atexit)[^\n]*\n(?:Traceback [^\n]*\n)?(?:[ \t][^\n]*\n)*[^\n]*\n?"
    rb"|^(?:\S+:[0-9]+: \w*Warning: |Command exited with non-zero status )[^\n]*\n(?:[ \t][^\n]*\n?)*",
    re.MULTILINE,
)
"""Messages that ended nothing: an exception while an object is cleared away, a warning, words of ``time``."""

_KERNEL_ASSERTION: Final = re.compile(rb"(?:thread: \[[0-9,]+\]|Device-side) [Aa]ssertion `")
"""Words of a kernel, which cannot raise the exception that follows."""

_SHARED: Final = re.compile(
    rb"_multiprocessing\.SemLock\(|_posixshmem\.|multiprocessing/(?:heap|shared_memory)\.py"
)
"""Places in a traceback at which what is full is /dev/shm."""

_PIPE: Final = re.compile(rb"multiprocessing/connection\.py")
"""A place in a traceback at which the connection is one to a process of the program."""

_RULE: Final = b"-" * 40
"""Above and below a message of MPI."""

_PREFIX: Final = re.compile(
    rb"^(?:\[[a-z]{1,20}[0-9]{1,6}\]: ?|\[[0-9]+,[0-9]+\]<std\w{3}>: ?|\([\w.]{1,80} pid=[^)\n]{1,80}\) "
    rb"|[\w.-]{1,80}-[0-9]+ +\| | *[0-9]{1,6}: )",
    re.MULTILINE,
)
"""Prefixes that torch, torchrun, MPI, Ray, Compose and srun write before each line of a process."""

_PREFIXED: Final = re.compile(rb"^([^\n]{1,80}?)Traceback \(most recent call last\)[^\n]*\n", re.MULTILINE)

_COLOUR: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")

_RICH_END: Final = "╰".encode()
"""The beginning of the line above the exception where Rich draws a traceback."""

_DRAWN: Final = " \t│╭╰╮╯─"
"""Characters of a frame around a message."""

_LAUNCHED: Final = (b"ChildFailedError", b"subprocess.CalledProcessError")
"""Exceptions of launchers, which have started the program that failed."""

_CHAINED: Final = (
    b"The above exception was the direct cause of the following exception:",
    b"During handling of the above exception, another exception occurred:",
)
_RAISED: Final = re.compile(
    rb"(?:[A-Za-z_][A-Za-z0-9_]{0,99}\.){0,20}(_?[A-Z][A-Za-z0-9_]{0,99}|[a-z_]{1,99}error)(?::(?: .*)?)?"
)


def diagnose(log: bytes, exit_code: int | None) -> Diagnosis | None:
    """Return the cause that the end of a log tells; None if it tells none that is known."""
    for text in _ends(log):
        match = _RAISED.match(text)
        kind = "" if match is None else match[1].decode()
        if kind in _OF_LOGIC or b"FileNotFoundError: [Errno 2] " in text:
            return None
        may_tell = _TOLD_BY.get(kind, CAUSES)
        if not kind and not any(map(_STOPS.search, filter(_NOT_FINITE.search, text.splitlines()))):
            may_tell -= {ExitCause.NON_FINITE}  # steps are logged with a loss that is not finite
        for sign in _SIGNS:
            if sign.cause in may_tell and (told := sign.text.search(text)):
                if sign.cause is ExitCause.USAGE_ERROR and not _tracebacks(log):
                    return _refused(last_words(log))
                if sign.cause is ExitCause.NETWORK and _PIPE.search(last_words(log)):
                    return None
                line = _line_at(text, told.start()) if find_exception(log) is None else ""
                return _at_its_place(sign, log)._replace(line=line)
        killed = _of_a_child(text)
        if killed is not None and exit_code != 128 + killed:
            cause, words = BY_SIGNAL[killed]
            return Diagnosis(cause, f"a process of the program: {words}")
    last = last_words(log)
    if launched := _of_a_worker(log):
        last, exit_code = launched
    elif _tracebacks(log):
        return None
    if match := _READ_BY_A_SHELL.search(last):
        script = match[1].decode(errors="replace")
        hint = f"{script} has no #! line, so a shell has read it; write: python {script}"
        return Diagnosis(ExitCause.NOT_EXECUTABLE, hint)
    if match := _NO_SCRIPT.search(last):
        hint = "the script or module is not in the code of the job"
        return Diagnosis(ExitCause.NOT_FOUND, hint, _line_at(last, match.start()))
    if (exit_code == _USAGE_CODE and _USAGE.search(last)) or (
        exit_code and _SHORT_USAGE.search(last.strip())
    ):
        return _refused(last)
    return None


def _of_a_worker(log: bytes) -> tuple[bytes, int] | None:
    """Return the last lines of a process of torchrun that has left no traceback, and its exit code."""
    before, *found = _cleaned(log).split(_TRACEBACK)
    code = _WORKER_CODE.search(found[0]) if len(found) == 1 else None
    return None if code is None else (b"\n".join(before.splitlines()[-LAST_LINES:]), int(code[1]))


def _line_at(text: bytes, place: int) -> str:
    """Return the line of a text at a place."""
    line = text[text.rfind(b"\n", 0, place) + 1 :].partition(b"\n")[0]
    return line.decode(errors="replace").strip(_DRAWN)[:MAX_EXCEPTION]


def _at_its_place(sign: _Sign, log: bytes) -> Diagnosis:
    """Return a cause with what stands above the exception that tells it: a kernel, or a line of code."""
    cause = sign.cause
    if cause in _OF_KERNELS and _KERNEL_ASSERTION.search(log):
        cause = ExitCause.DEVICE_ASSERT
    if cause is ExitCause.DISK_FULL and _SHARED.search(last_words(log)):
        cause = ExitCause.SHARED_MEMORY
    return Diagnosis(cause, next(each.hint for each in (sign, *_SIGNS) if each.cause is cause))


def _of_a_child(text: bytes) -> int | None:
    """Return the signal that has ended a process of the program, as its parent says."""
    match = _CHILD.search(text, max(text.find(_FIRST), 0))
    return None if match is None else _NAMED.get(match[1].decode(errors="replace").lower())


def _refused(last: bytes) -> Diagnosis:
    """Return that a program refuses its arguments, with its line about an error, or its last words."""
    lines = [line for line in last.decode(errors="replace").splitlines() if any(map(str.isalpha, line))]
    errors = [at for at, line in enumerate(lines) if "error:" in line.lower() or "*** No " in line]
    unknown = [at for at, line in enumerate(lines) if _UNKNOWN.search(line)]
    at = (errors or unknown or [len(lines) - 1])[-1]
    ends = at + 2 if lines[at].endswith(":") else at + 1
    said = " ".join(line.strip(_DRAWN) for line in lines[at:ends])[:MAX_EXCEPTION]
    return Diagnosis(ExitCause.USAGE_ERROR, f"the program refuses its arguments: {said}", said)


def find_exception(log: bytes) -> PythonException | None:
    """Return the exception whose traceback ends a log; of a log of a launcher, that of the program."""
    found = next(_exceptions(last_words(log)), None)
    if found is None:
        return None
    match = _RAISED.match(found)
    line = found.partition(b"\n")[0][:MAX_EXCEPTION].decode(errors="replace").strip()
    return None if match is None else PythonException(match[1].decode(), line)


def find_complaint(log: bytes) -> str:
    """Return the last line of a log without a traceback, if it says that something went wrong."""
    if _tracebacks(log):
        return ""
    lines = takewhile(lambda line: not _WENT_ON.match(line), reversed(last_words(log).splitlines()))
    found = next(filter(_WRONG.search, lines), b"")
    return found.decode(errors="replace").strip()[:MAX_EXCEPTION]


def last_words(log: bytes) -> bytes:
    """Return the last traceback of a log, or its last lines."""
    found = _tracebacks(log)
    if found:
        return found[-1]
    lines = [line for line in _cleaned(log).splitlines() if not line.startswith(b"frame #")]
    return b"\n".join(lines[-LAST_LINES:])


def _cleaned(log: bytes) -> bytes:
    """Return a log without colours and names of processes, and without what Python ignores."""
    plain = _COLOUR.sub(b"", log.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    for found in _PREFIXED.finditer(plain):
        prefix = re.sub(rb"[0-9]+", rb"[0-9]+", re.escape(found[1]))
        if re.match(prefix + rb"  ", plain[found.end() :]):
            plain = re.sub(rb"(?m)^" + prefix, b"", plain)
            break
    return _IGNORED.sub(b"", _PREFIX.sub(b"", plain))


def _tracebacks(log: bytes) -> list[bytes]:
    """Return the tracebacks in a log, without those that a launcher of processes has added below.

    One after which the program went on is none that ended it; beside a launcher, others may print after it.
    """
    _, *found = _cleaned(log).split(_TRACEBACK)
    launched = False
    while len(found) > 1 and any(name in found[-1] for name in _LAUNCHED):
        launched = bool(found.pop())
    if found and not launched and _WENT_ON.search(found[-1]):
        return []
    return found


def _ends(log: bytes) -> Iterator[bytes]:
    """Yield the texts that tell the cause: the last exception, and those that it was raised from."""
    words, found = last_words(log), _tracebacks(log)
    if not found or next(_exceptions(words), None) is None:
        yield _complaint(words)
    for place, text in reversed(list(enumerate(found))[-MAX_CHAIN:]):
        yield from _exceptions(text)
        if not place or not found[place - 1].rstrip().endswith(_CHAINED):
            return


def _complaint(words: bytes) -> bytes:
    """Return the last line of a log with the lines above it by which a program says why it ends."""
    last, *above = [*dropwhile(_is_aside, reversed(words.splitlines()))] or [b""]
    in_words = takewhile(lambda line: not line.startswith(_RULE), above)
    lines = [last, *(in_words if last.startswith(_RULE) else takewhile(_complains, above))]
    kept = dropwhile(lambda line: line[:1].isspace(), reversed(lines[1:]))
    return b"\n".join(line for line in (*kept, last) if not _is_record(line))


def _is_record(line: bytes) -> bool:
    return bool(_RECORD.match(line)) and not _LOGS_AN_ERROR.match(line)


def _is_aside(line: bytes) -> bool:
    """Return True if a line is empty, or one of a log that does not tell of further work."""
    return not line.strip() or (_is_record(line) and not _RECORDS_WORK.search(line))


def _complains(line: bytes) -> bool:
    """Return True if a line may stand in the message of an error, or below it."""
    if _LOGS_AN_ERROR.match(line) or _is_aside(line):
        return True
    return bool(_COMPLAINS.match(line)) and not _is_record(line)


def _exceptions(words: bytes) -> Iterator[bytes]:
    """Yield the text of the exception that ends a traceback, with what it prints below its first line."""
    lines = words.splitlines()
    lines = [line for line in lines if line.strip() not in _CHAINED]
    begin = max(len(lines) - EXCEPTION_LINES, 0)
    for place, (above, line) in reversed(list(enumerate(pairwise(lines[begin:]), begin + 1))):
        # A traceback is indented up to its last line; a syntax error has no other line that tells it.
        if above.startswith((b"  ", _RICH_END)) and _RAISED.fullmatch(line.rstrip()):
            more = takewhile(lambda line: not _RECORD.match(line), islice(lines, place + 1, None))
            yield b"\n".join(chain([line], more))
            return
