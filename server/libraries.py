"""How a line at the head of a file brings a name, and what the standard libraries bring: a row for each language."""

import builtins
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, eq=False)
class ImportRules:
    """How a line at the head of a file brings a name; structured/imports.py reads it.

    An import is a line that matches `line`. One that matches `brings` as a whole is one import and no more; its group
    has the names that it brings, each the last word before a comma. `head` may stand above the first import, and
    nothing may stand above a line that matches `first`. A line that matches `relative` is good for files in one folder
    only. `unseen` is an import of others besides a wildcard that may bring names which the text does not show: then
    nothing is offered. `written` is the import of PATH, `listed` the same in a list of imports. The `paths` are those
    of the standard library whose last part is the name that they bring. Where headers bring names, `headers` has the
    pattern of the names of each, which are written after the text `before`. A file needs no import for the `known`
    names, for those of its own package, which `package` finds, nor for those `declared` in another file of its
    folder."""

    line: str
    brings: str
    written: str
    paths: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    listed: str = ""
    head: str = r"(?!)"
    first: str = r"(?!)"
    relative: str = r"(?!)"
    unseen: str = r"(?!)"
    known: str = ""
    package: str = r"(?!)"
    declared: str = ""


def _paths(packages: Mapping[str, str], mark: str) -> str:
    return " ".join(f"{package}{mark}{name}" for package, names in packages.items() for name in names.split())


_NO_MODULES = "antigravity idlelib lib2to3 test this turtledemo"  # jokes, tests and programs
_PYTHON_NAME = r"(?:[\w.]+\s+as\s+)?\w+"
PYTHON_IMPORTS = ImportRules(
    r"(?:from\s+[\w.]+\s+import\s|import\s+\w)(?!.*[(\\]$)",
    rf"(?:from\s+[\w.]+\s+)?import\s+({_PYTHON_NAME}(?:\s*,\s*{_PYTHON_NAME})*)",
    "import PATH",
    " ".join(sorted(name for name in sys.stdlib_module_names - {*_NO_MODULES.split()} if name[0] != "_")),
    first=r"(?m)^from\s+__future__\s",
    relative=r"from\s+\.",
    known=" ".join(dir(builtins)),
)
_NODE_MODULES = """
assert async_hooks buffer child_process cluster dgram dns events fs http http2 https net os path perf_hooks
querystring
readline stream string_decoder tls tty url util v8 vm worker_threads zlib
"""
_ECMA_GLOBALS = """
AbortController Buffer FormData URL URLSearchParams WebSocket console crypto document fetch globalThis navigator
performance process setInterval setTimeout structuredClone window
"""
_ECMA_NAMES = r"\{{\s*{0}(?:\s*,\s*{0})*\s*,?\s*\}}"
_ECMA_IMPORTED = _ECMA_NAMES.format(r"(?:[\w$]+\s+as\s+)?[\w$]+")
_ECMA_REQUIRED = _ECMA_NAMES.format(r"(?:[\w$]+\s*:\s*)?[\w$]+")
ECMA_IMPORTS = ImportRules(
    r"import\b.*['\"]|(?:const|let|var)\s[^=]*=\s*require\b",
    rf"import\s+(?!type\s)([\w$]+|\*\s*as\s+[\w$]+|(?:[\w$]+\s*,\s*)?{_ECMA_IMPORTED})\s*from\s*['\"][^'\"]+['\"];?"
    rf"|(?:const|let|var)\s+([\w$]+|{_ECMA_REQUIRED})\s*=\s*require\(['\"][^'\"]+['\"]\)(?:\.[\w$]+)*;?",
    "",  # as the imports of the file are
    _NODE_MODULES,
    relative=r".*['\"]\.",
    known=_ECMA_GLOBALS,
)
GO_IMPORTS = ImportRules(
    r"import\s+\(?|(?:[\w.]+\s+)?\"[^\"\s]+\"\s*(?://.*)?$",
    r"(?:import\s+)?(?:(\w+)\s+\"[^\"]+\"|\"(?:[^\"]*[/.-])?(?!(?:v\d+|go)\")(\w+)(?:\.v\d+|-go|/v\d+)?\")",
    'import "PATH"',
    "bufio bytes compress/gzip container/heap container/list context crypto/md5 crypto/sha1 crypto/sha256 crypto/tls "
    "crypto/x509 database/sql embed encoding/base64 encoding/binary encoding/csv encoding/hex encoding/json "
    "encoding/xml errors expvar flag fmt go/ast go/format go/parser go/token hash/fnv html io io/fs io/ioutil iter log "
    "log/slog maps math math/big math/bits mime mime/multipart net net/http net/http/httptest net/http/httputil "
    "net/netip net/url os os/exec os/signal os/user path path/filepath reflect regexp runtime runtime/debug "
    "runtime/pprof slices sort strconv strings sync sync/atomic syscall testing text/tabwriter time unicode "
    "unicode/utf16 unicode/utf8 unsafe",
    listed='"PATH"',
    head=r"package\s",
    declared=r"\n(?:(?:func|type|var|const) |\t(?=\w+(?: +[\w.*\[\]]+)? += ))(\w+)",
)

_RUST_MODULES = {
    "std": "cmp convert env fmt fs io iter mem ops process ptr slice thread vec",
    "std::borrow": "Borrow Cow",
    "std::cell": "Cell RefCell",
    "std::cmp": "Ordering",
    "std::collections": "BTreeMap BTreeSet BinaryHeap HashMap HashSet VecDeque",
    "std::ffi": "CStr CString OsStr OsString",
    "std::fmt": "Debug Display",
    "std::fs": "File",
    "std::hash": "Hash Hasher",
    "std::io": "BufRead BufReader BufWriter Read Write",
    "std::iter": "FromIterator Peekable",
    "std::marker": "PhantomData",
    "std::net": "IpAddr SocketAddr TcpListener TcpStream",
    "std::ops": "Add Deref DerefMut Index Range",
    "std::path": "Path PathBuf",
    "std::pin": "Pin",
    "std::process": "Command",
    "std::rc": "Rc",
    "std::str": "FromStr",
    "std::sync": "Arc Mutex OnceLock RwLock mpsc",
    "std::time": "Duration Instant SystemTime",
}
RUST_IMPORTS = ImportRules(
    r"(?:pub(?:\([^)]*\))?\s+)?use\s.*;",
    r"use\s+(?:\w+::)*(\w+(?:\s+as\s+\w+)?|\{[\w\s,:]+\})\s*;",
    "use PATH;",
    _paths(_RUST_MODULES, "::"),
    relative=r".*\b(?:super|self)::",
    known="Box Clone Copy Default Drop Eq Err Fn FnMut FnOnce From Into IntoIterator Iterator None Ok Option Ord "
    "PartialEq PartialOrd Result Self Send Sized Some String Sync ToOwned ToString TryFrom TryInto Unpin Vec",
)
_JAVA_CLASSES = {
    "java.io": "BufferedReader BufferedWriter ByteArrayInputStream ByteArrayOutputStream Closeable EOFException File "
    "FileInputStream FileNotFoundException FileOutputStream IOException InputStream InputStreamReader OutputStream "
    "PrintStream PrintWriter Reader Serializable StringReader StringWriter UncheckedIOException Writer",
    "java.lang.annotation": "ElementType Retention RetentionPolicy Target",
    "java.lang.reflect": "Constructor Field InvocationTargetException Method Modifier ParameterizedType Type "
    "TypeVariable",
    "java.math": "BigDecimal BigInteger",
    "java.net": "InetAddress MalformedURLException ServerSocket Socket URI URISyntaxException URL",
    "java.nio.charset": "Charset StandardCharsets",
    "java.nio.file": "Files Path Paths",
    "java.time": "Duration Instant LocalDate LocalDateTime ZoneId",
    "java.util": "ArrayDeque ArrayList Arrays Calendar Collection Collections Comparator Deque EnumMap EnumSet HashMap "
    "HashSet Iterator LinkedHashMap LinkedHashSet LinkedList List Locale Map NoSuchElementException Objects Optional "
    "PriorityQueue Properties Queue Random Scanner Set SortedMap StringJoiner TreeMap TreeSet UUID",
    "java.util.concurrent": "Callable CompletableFuture ConcurrentHashMap CountDownLatch ExecutionException Executor "
    "ExecutorService Executors Future ThreadLocalRandom TimeUnit TimeoutException",
    "java.util.concurrent.atomic": "AtomicBoolean AtomicInteger AtomicLong AtomicReference",
    "java.util.function": "BiConsumer BiFunction Consumer Function Predicate Supplier UnaryOperator",
    "java.util.regex": "Matcher Pattern",
    "java.util.stream": "Collectors IntStream Stream",
}

JAVA_IMPORTS = ImportRules(
    r"import\s",
    r"import\s+(?:static\s+)?[\w.]+\.(\w+)\s*;",
    "import PATH;",
    _paths(_JAVA_CLASSES, "."),
    head=r"package\s",
    unseen=r"(?m)^import\s[^;\n]*\*",
    known="Boolean Byte Character Class Double Enum Error Exception Float Integer Iterable Long Math Module Number "
    "Object Override Process Record Runnable Short String StringBuilder System Thread Throwable Void",
    package=r"(?m)^package\s+([\w.]+)",
    declared=r"(?:class|interface|enum|record)\s+(\w+)",
)
_C_HEADERS = {
    "assert.h": r"assert",
    "ctype.h": r"is(?:al(?:num|pha)|digit|space|upper|lower|punct|xdigit|print)|to(?:upper|lower)",
    "errno.h": r"errno",
    "inttypes.h": r"PRI[diux]\d+",
    "limits.h": r"U?(?:CHAR|SHRT|INT|LONG|LLONG)_M(?:AX|IN)",
    "math.h": r"sqrt|pow|fabs|floor|ceil|fmod|sin|cos|tan|exp|log(?:2|10)?|isnan|isinf",
    "setjmp.h": r"jmp_buf|setjmp|longjmp",
    "signal.h": r"signal|SIG[A-Z]+",
    "stdarg.h": r"va_(?:list|start|end|arg|copy)",
    "stdbool.h": r"bool",
    "stdint.h": r"u?int(?:8|16|32|64|ptr|max)_t",
    "stdio.h": r"FILE|v?(?:f|s|sn)?printf|s?scanf|f(?:open|close|read|write|gets|puts|flush|seek|tell)|puts|putchar"
    r"|perror",
    "stdlib.h": r"malloc|calloc|realloc|free|exit|abort|atexit|ato[ifl]|strto[a-z]+|getenv|qsort|s?rand|EXIT_[A-Z]+",
    "string.h": r"mem(?:cpy|set|cmp|move|chr)|str(?:len|n?cmp|n?cpy|n?cat|r?chr|str|dup|tok|error|c?spn)",
    "time.h": r"time|clock|time_t|strftime|localtime|gmtime",
    "unistd.h": r"fork|getpid|usleep|ssize_t|pid_t",
}
_CPP_OWN = """
any array atomic bitset chrono complex deque filesystem forward_list future initializer_list list locale map mutex
optional queue random regex set span stack string string_view thread tuple typeindex unordered_map unordered_set
valarray
variant vector
"""
_CPP_HEADERS = {
    **{name: name for name in _CPP_OWN.split()},
    **{f"c{name[:-2]}": names for name, names in _C_HEADERS.items() if name not in ("unistd.h", "stdbool.h")},
    "algorithm": r"(?:stable_)?sort|find(?:_if(?:_not)?)?|min|max|(?:all|any|none)_of|copy|transform|reverse|remove_if"
    r"|fill",
    "exception": r"exception|terminate|current_exception",
    "fstream": r"[io]?fstream",
    "functional": r"function|bind|hash|less|greater|ref|plus",
    "iomanip": r"setw|setprecision|setfill|quoted",
    "iostream": r"cout|cerr|cin|clog|endl",
    "iterator": r"back_inserter|advance|distance|next|prev",
    "limits": r"numeric_limits",
    "memory": r"(?:unique|shared|weak)_ptr|make_(?:unique|shared)|enable_shared_from_this|addressof",
    "mutex": r"mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once",
    "numeric": r"accumulate|iota",
    "sstream": r"[io]?stringstream",
    "stdexcept": r"(?:runtime|logic|range|length|domain|overflow)_error|out_of_range|invalid_argument",
    "string": r"string|to_string|sto[a-z]+|getline",
    "type_traits": r"is_[a-z_]+|enable_if(?:_t)?|decay(?:_t)?|conditional(?:_t)?|true_type|false_type|remove_[a-z_]+",
    "utility": r"move|forward|pair|make_pair|swap|exchange|declval",
}
C_IMPORTS = ImportRules(
    r"#\s*include\b",
    r"(?!)",
    "#include <PATH>",
    headers=_C_HEADERS,
    unseen=r"(?m)^[ \t]*#[ \t]*include[ \t]*\"",  # a header of others, which may declare it or include more
)
CPP_IMPORTS = replace(
    C_IMPORTS, headers=_CPP_HEADERS, before="std::", unseen=r"(?m)^[ \t]*#[ \t]*include[ \t]*(?:\"|<[^>\n]*[./])"
)
