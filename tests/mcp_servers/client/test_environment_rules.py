"""Dangerous environment variables are recognized by name; the catalog sets none of them."""

import pytest

from mcp_servers.client.environment_rules import (
    find_variable_danger,
    list_variables_needing_exception,
)
from mcp_servers.presets.catalog import load_catalog

DANGEROUS = """
NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED LD_PRELOAD LD_LIBRARY_PATH
LD_AUDIT DYLD_INSERT_LIBRARIES PATH PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONINSPECT
NPM_CONFIG_REGISTRY npm_config_registry npm_config_script_shell UV_INDEX_URL UV_PYTHON
GIT_SSH_COMMAND GIT_CONFIG_COUNT GIT_EXEC_PATH DOTNET_STARTUP_HOOKS JAVA_TOOL_OPTIONS
_JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH BASH_ENV ENV IFS PERL5OPT PERL5LIB RUBYOPT RUBYLIB
GCONV_PATH LOCPATH NLSPATH PIP_INDEX_URL DENO_DIR BUN_INSTALL ELECTRON_RUN_AS_NODE HOME
XDG_CONFIG_HOME TMPDIR HTTP_PROXY https_proxy no_proxy ALL_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE
SSLKEYLOGFILE KUBECONFIG DOCKER_HOST CORECLR_PROFILER Node_Options ld_preload GLIBC_TUNABLES
OPENSSL_CONF PROMPT_COMMAND EDITOR PAGER BROWSER AWS_CONFIG_FILE PHPRC LUA_INIT CARGO_HOME
"""
HARMLESS = """
API_TOKEN GITHUB_TOKEN GITLAB_TOKEN NODE_ENV AWS_REGION AWS_ACCESS_KEY_ID DATABASE_URI LANG TZ
PORT DEBUG PATHS MY_PATH HOMEPAGE ENVIRONMENT GITHUB_PERSONAL_ACCESS_TOKEN PERPLEXITY_API_KEY
SENTRY_HOST OPENAI_API_KEY LOG_LEVEL UVICORN_PORT PIPELINE NPMRC_NOTE LDAP_URL
"""


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_a_dangerous_variable_is_refused_with_a_reason(name: str) -> None:
    assert find_variable_danger(name)


@pytest.mark.parametrize("name", HARMLESS.split())
def test_another_variable_is_allowed(name: str) -> None:
    assert find_variable_danger(name) is None


def test_an_exception_applies_to_one_exact_name() -> None:
    names = ["NODE_OPTIONS", "API_TOKEN", "PATH", "node_options"]
    assert list_variables_needing_exception(names, ()) == ["NODE_OPTIONS", "PATH", "node_options"]
    assert list_variables_needing_exception(names, {"NODE_OPTIONS": "why"}) == [
        "PATH",
        "node_options",
    ]


def test_no_preset_of_the_catalog_sets_a_dangerous_variable() -> None:
    variables = {
        (entry.slug, name)
        for entry in load_catalog()
        for name in entry.endpoint_config.get("env", {})
    }
    assert variables
    assert not [variable for variable in variables if find_variable_danger(variable[1])]
