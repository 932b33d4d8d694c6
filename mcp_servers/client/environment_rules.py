"""The environment of a stdio server, and which of its variables need an exception.

Some variables make a program load code, choose which programs, configurations or certificates are
trusted, or bypass the sandbox and the egress proxy. A server may have one only if a platform
administrator added an exception with its exact name. Names are compared in upper case: npm reads
`npm_config_*`, and most programs read `http_proxy` too.
"""

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from bonobot.core.i18n.messages import TranslatableMessage, format_message

LOADS_CODE = format_message("it can make the program load code or run another program")
CHOOSES_PACKAGES = format_message("it can change which packages are downloaded and from where")
SANDBOX_FOLDER = format_message("it sets a folder that the sandbox controls")
EGRESS_BYPASS = format_message("it can bypass the egress proxy")
CHANGES_TRUST = format_message(
    "it can change which certificates are trusted or log the keys of connections"
)
RUNS_CREDENTIAL_PROGRAM = format_message(
    "it names a configuration file that can run a program to sign in"
)

# Prefixes of variables, except those in `HARMLESS_NAMES`.
_PREFIXES = {
    LOADS_CODE: (
        *("LD_", "DYLD_", "NODE_", "PYTHON", "PERL", "RUBY", "BUNDLE_", "GEM_", "LUA_", "PHP"),
        *("DOTNET_", "COMPLUS_", "CORECLR_", "COR_PROFILER", "DENO_", "BUN_", "ELECTRON_", "BASH_"),
        *("GIT_", "JAVA_", "MALLOC_", "SHELLOPTS", "BASHOPTS", "OPENSSL_", "GCONV_"),
        *(
            "COR_",
            "MONO_",
            "ERL_",
            "ELIXIR_",
            "JULIA_",
            "TS_NODE_",
            "TSX_",
            "PYTEST_",
            "COVERAGE_P",
        ),
        *(
            "COVERAGE_PROCESS_",
            "OTEL_PYTHON_",
            "KREW_",
            "CLOUDSDK_PYTHON",
            "LIBMYSQL_",
            "CATALINA_",
            "LEIN_",
            "MISE_",
        ),
        *("GTK_", "QT_", "GIO_", "GST_", "VK_ICD_", "VK_LAYER_", "OCL_ICD_", "LIBGL_", "LIBVA_"),
        *("DBUS_", "GSETTINGS_", "VOLTA_", "NVM_", "FNM_", "ASDF_", "MAGICK_"),
    ),
    CHOOSES_PACKAGES: (
        *("NPM_", "UV_", "PIP_", "PIPX_", "PNPM_", "YARN_", "COREPACK_", "CARGO_", "RUSTUP_"),
        *("POETRY_", "CONDA_", "PLAYWRIGHT_", "PUPPETEER_", "NUGET_", "PDM_", "COMPOSER_", "NIX_"),
    ),
    SANDBOX_FOLDER: ("XDG_",),
    EGRESS_BYPASS: ("GLOBAL_AGENT_",),
    RUNS_CREDENTIAL_PROGRAM: ("DOCKER_",),
}
_NAMES = {
    LOADS_CODE: (
        *("PATH", "PATHEXT", "COMSPEC", "SHELL", "ENV", "IFS", "CDPATH", "PS4", "ZDOTDIR"),
        *("PROMPT_COMMAND", "EDITOR", "VISUAL", "PAGER", "BROWSER", "LESSOPEN", "LESSCLOSE"),
        *("MANPAGER", "SSH_ASKPASS", "SUDO_ASKPASS", "SSH_AUTH_SOCK", "SSH_COMMAND", "RSYNC_RSH"),
        *("_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JDK_HOME", "CLASSPATH", "MAVEN_OPTS"),
        *("GRADLE_OPTS", "SCALA_OPTS", "R_HOME", "R_PROFILE", "R_PROFILE_USER", "JULIA_LOAD_PATH"),
        *("GOFLAGS", "GOROOT", "GOPATH", "RUSTFLAGS", "RUSTC_WRAPPER", "ERL_FLAGS", "ERL_LIBS"),
        *("TCLLIBPATH", "GUILE_LOAD_PATH", "LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "TERMINFO"),
        *("TERMCAP", "TZDIR", "GETCONF_DIR", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS"),
        *("VIRTUAL_ENV", "CHROME_PATH", "CHROME_BIN", "DEBUGINFOD_URLS", "GTK_MODULES"),
        *("SQLITE_HISTORY", "PSQLRC", "MYSQL_HOME", "VIMINIT", "EXINIT", "INPUTRC"),
        *("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH", "CPATH", "MAKEFLAGS", "CC", "CXX"),
        *("ANSIBLE_CONFIG", "ANSIBLE_LIBRARY", "GRADLE_USER_HOME", "MAVEN_ARGS", "SBT_OPTS"),
        *("HADOOP_OPTS", "SPARK_HOME", "SPARK_SUBMIT_OPTS", "ANT_OPTS", "KUBECTL_EXTERNAL_DIFF"),
        *("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_PATH", "GH_BROWSER"),
        *("RUSTC", "OCAMLPARAM", "R_LIBS", "R_LIBS_USER", "R_ENVIRON", "R_ENVIRON_USER"),
        *("PSMODULEPATH", "HGRCPATH", "SVN_SSH", "TERMINFO_DIRS", "JAVACMD", "JRE_HOME"),
        *("JVM_ARGS", "SASL_PATH", "LDAPCONF", "LDAPRC", "ODBCINI", "ODBCSYSINI", "TNS_ADMIN"),
        *("ORACLE_HOME", "ESBUILD_BINARY_PATH", "SWC_BINARY_PATH", "CHROME_DEVEL_SANDBOX"),
        *("CHROMIUM_FLAGS", "CHROMIUM_USER_FLAGS", "GOOGLE_CHROME_BIN", "IPYTHONDIR"),
        *("MPLCONFIGDIR", "CUDA_INJECTION64_PATH", "NVBLAS_CONFIG_FILE", "HDF5_PLUGIN_PATH"),
        *("GDAL_DRIVER_PATH", "MAILCAPS", "GNUPGHOME", "AWS_DATA_PATH", "AZURE_EXTENSION_DIR"),
        *("ASAN_OPTIONS", "LSAN_OPTIONS", "MSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"),
    ),
    CHOOSES_PACKAGES: ("GOPROXY", "GOENV", "GOTOOLCHAIN", "TF_CLI_CONFIG_FILE"),
    SANDBOX_FOLDER: (
        *("HOME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA"),
        *("TMPDIR", "TMP", "TEMP", "PWD", "OLDPWD"),
    ),
    EGRESS_BYPASS: (
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "SOCKS_PROXY"),
        *("SOCKS_SERVER", "WS_PROXY", "WSS_PROXY", "RSYNC_PROXY"),
    ),
    CHANGES_TRUST: (
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CURL_HOME"),
        *("AWS_CA_BUNDLE", "SSLKEYLOGFILE", "WGETRC", "HTTPLIB2_CA_CERTS"),
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    ),
    RUNS_CREDENTIAL_PROGRAM: (
        *("KUBECONFIG", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "CLOUDSDK_CONFIG"),
        *("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "AZURE_CONFIG_DIR", "PGSERVICEFILE"),
        *("PGSYSCONFDIR", "NETRC", "BOTO_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF"),
    ),
}
# Ends of names of variables that name a program.
_SUFFIXES = ("_PAGER", "_EDITOR", "_ASKPASS", "_WRAPPER", "_RSH", "_PRELOAD", "_PLUGINS")
HARMLESS_NAMES = frozenset(("NODE_ENV", "NODE_NO_WARNINGS"))
_BY_NAME = {name: reason for reason, names in _NAMES.items() for name in names}
_BY_PREFIX = tuple(
    (prefix, reason) for reason, prefixes in _PREFIXES.items() for prefix in prefixes
)
# All that a child gets in addition to its configured variables: PATH to find launchers, HOME for
# their caches, the others for user, language, time zone and temporary files.
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)


def find_variable_danger(name: str) -> TranslatableMessage | None:
    """Return why a variable needs an exception, as the end of a sentence, or None."""
    upper = name.upper()
    if upper in HARMLESS_NAMES:
        return None
    if reason := _BY_NAME.get(upper):
        return reason
    if upper.endswith(_SUFFIXES):
        return LOADS_CODE
    return next((reason for prefix, reason in _BY_PREFIX if upper.startswith(prefix)), None)


def list_variables_needing_exception(
    names: Iterable[str], exceptions: Collection[str]
) -> list[str]:
    """Return the names that need an exception and have none, sorted."""
    return sorted(name for name in names if name not in exceptions and find_variable_danger(name))


def build_environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Return a child's whole environment: `INHERITED_VARIABLES` and the configured ones.

    The folder of Bonobot's own Python is last on PATH.
    """
    env = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    python_folder = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join(filter(None, (env.get("PATH", os.defpath), python_folder)))
    return env | dict(declared)
