//! Asks package managers which hosts the user's own configuration names.
//!
//! A package manager is asked without a network and without the settings of a project. Its answer
//! is its configured registry, or an error that names the registry that it cannot reach.

use std::collections::BTreeMap;

use serde_json::Value;
use toolgate_net::{HostRules, HttpUrl};

use crate::forwarder::PackageHostSource;

/// The maximum number of hosts in one answer of a package manager.
const HOSTS_MAX: usize = 64;

/// The hosts of the registries that the configuration of a package manager names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfiguredRegistryHosts {
    /// Host rules that allow the registries.
    pub hosts: Vec<String>,
    /// Environment variables that name the registry to the package manager, because it does not see
    /// the user's settings in the sandbox. The values contain no user name or password.
    pub variables: Vec<(&'static str, String)>,
}

/// A question to a package manager: the command, its environment, and the parser of the answer.
pub(super) struct RegistryHostQuery {
    pub(super) program: &'static str,
    pub(super) args: &'static [&'static str],
    pub(super) stdin: &'static str,
    /// The files and folders with the user's settings: absolute, or relative to the home folder.
    pub(super) settings: &'static [&'static str],
    /// Environment variables of the server that contain the user's settings.
    pub(super) kept_variables: &'static [&'static str],
    /// Environment variables that are set for the package manager when it is asked.
    pub(super) variables: &'static [(&'static str, &'static str)],
    /// The files with a project's settings, relative to the project's folder.
    pub(super) project_settings: &'static [&'static str],
    /// `true` if the question is about the workspace, so that the package manager starts there and
    /// not in an empty folder.
    pub(super) is_about_workspace: bool,
    /// `true` if the command of the package manager is expected to fail, because its error message
    /// contains the answer.
    pub(super) fails: bool,
    /// A function that returns the hosts in the package manager's answer. Some of them may be
    /// invalid.
    parse: fn(&str) -> ConfiguredRegistryHosts,
}

impl RegistryHostQuery {
    /// A question with default values for the fields that most package managers do not need.
    const PLAIN: Self = Self {
        program: "",
        args: &[],
        stdin: "",
        settings: &[],
        kept_variables: &[],
        variables: &[],
        project_settings: &[],
        is_about_workspace: false,
        fails: false,
        parse: parse_words,
    };

    /// Returns the hosts in `answer` as host rules. Skips invalid hosts and patterns.
    pub(super) fn read(&self, answer: &str) -> ConfiguredRegistryHosts {
        let mut named = (self.parse)(answer);
        named.hosts.retain(|rule| !rule.contains('*') && HostRules::parse(&[rule]).is_ok());
        named
    }

    /// Returns the question to the package manager `source`.
    pub(super) fn for_source(source: PackageHostSource) -> Self {
        match source {
            PackageHostSource::Npm => Self {
                program: "npm",
                // In its global mode, npm does not read a project's settings.
                args: &["config", "list", "--json", "--global"],
                settings: &[".npmrc"],
                kept_variables: &["npm_config_registry", "NPM_CONFIG_REGISTRY"],
                project_settings: &[".npmrc"],
                parse: parse_npm,
                ..Self::PLAIN
            },
            PackageHostSource::Pnpm => Self {
                program: "pnpm",
                args: &["config", "get", "registry"],
                settings: &[".npmrc", ".config/pnpm/rc"],
                kept_variables: &["npm_config_registry", "NPM_CONFIG_REGISTRY"],
                project_settings: &[".npmrc"],
                parse: |answer| registry_answer(first_line(answer), &["npm_config_registry"]),
                ..Self::PLAIN
            },
            PackageHostSource::Yarn => Self {
                program: "yarn",
                args: &["config", "get", "registry"],
                settings: &[".npmrc", ".yarnrc"],
                kept_variables: &["npm_config_registry", "NPM_CONFIG_REGISTRY"],
                project_settings: &[".npmrc", ".yarnrc"],
                parse: |answer| registry_answer(first_line(answer), &["npm_config_registry"]),
                ..Self::PLAIN
            },
            PackageHostSource::ModernYarn => Self {
                program: "yarn",
                args: &["config", "get", "npmRegistryServer"],
                settings: &[".yarnrc.yml"],
                kept_variables: &["YARN_NPM_REGISTRY_SERVER"],
                project_settings: &[".yarnrc.yml"],
                parse: |answer| registry_answer(first_line(answer), &["YARN_NPM_REGISTRY_SERVER"]),
                ..Self::PLAIN
            },
            PackageHostSource::Pip => Self {
                program: "python3",
                // Isolated, Python loads no module of the folder.
                args: &["-I", "-m", "pip", "install", "--help"],
                settings: &[".config/pip/pip.conf", ".pip/pip.conf", "/etc/pip.conf"],
                kept_variables: &["PIP_INDEX_URL", "PYENV_ROOT"],
                variables: &[("COLUMNS", ANSWER_COLUMNS)],
                project_settings: &[".venv/pip.conf", "venv/pip.conf"],
                parse: |help| registry_answer(default_index(help), &["PIP_INDEX_URL"]),
                ..Self::PLAIN
            },
            PackageHostSource::Uv => Self {
                program: "uv",
                args: &["pip", "compile", "-"],
                stdin: "toolgate\n",
                settings: &[".config/uv/uv.toml", "/etc/uv/uv.toml"],
                kept_variables: &["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PYENV_ROOT"],
                variables: &[("UV_HTTP_RETRIES", "0")],
                project_settings: &["uv.toml"],
                fails: true,
                parse: |error| {
                    let package = first_url(error).map(|url| url.trim_end_matches('/'));
                    let index = package.map(|url| url.strip_suffix("/toolgate").unwrap_or(url));
                    registry_answer(index, &["UV_DEFAULT_INDEX"])
                },
                ..Self::PLAIN
            },
            PackageHostSource::Cargo => Self {
                program: "cargo",
                // Nothing is installed, because the registry cannot be reached.
                args: &["install", "toolgate"],
                settings: &[".cargo/config.toml", ".cargo/config"],
                kept_variables: &["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"],
                variables: &[("CARGO_NET_RETRY", "0"), ("CARGO_TERM_COLOR", "never")],
                fails: true,
                // The user's configuration is visible in the sandbox.
                parse: |error| registry_answer(first_url(error), &[]),
                ..Self::PLAIN
            },
            PackageHostSource::Go => Self {
                program: "go",
                args: &["env", "GOPROXY", "GOSUMDB"],
                settings: &[".config/go/env"],
                kept_variables: &["GOPROXY", "GOSUMDB", "GOROOT"],
                variables: &[("GOTOOLCHAIN", "local")],
                parse: parse_go,
                ..Self::PLAIN
            },
            PackageHostSource::Maven => Self {
                program: "mvn",
                // The prefix has no plugin, so Maven lists the repositories that it would ask.
                args: &["-B", "-o", "toolgate:none"],
                settings: &[".m2/settings.xml"],
                kept_variables: &["JAVA_HOME"],
                fails: true,
                parse: parse_maven,
                ..Self::PLAIN
            },
            PackageHostSource::Nuget => Self {
                program: "dotnet",
                args: &["nuget", "list", "source", "--format", "short"],
                settings: &[".nuget/NuGet/NuGet.Config", ".config/NuGet/NuGet.Config"],
                kept_variables: &["DOTNET_ROOT"],
                variables: &[("DOTNET_CLI_TELEMETRY_OPTOUT", "1"), ("DOTNET_NOLOGO", "1")],
                // Sources that are turned off begin with `D`.
                parse: |answer| {
                    let lines = answer.lines().filter_map(|line| line.trim().strip_prefix("E "));
                    answer_with(lines.map(str::trim))
                },
                ..Self::PLAIN
            },
            PackageHostSource::Apt => Self {
                program: "sh",
                args: &["-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/*; true"],
                settings: &["/etc/apt/sources.list", "/etc/apt/sources.list.d"],
                parse: |lists| {
                    let lines = lists.lines().filter(|line| !line.trim_start().starts_with('#'));
                    answer_with(lines.flat_map(str::split_whitespace))
                },
                ..Self::PLAIN
            },
            PackageHostSource::Git => Self {
                program: "git",
                // A program can make the workspace look like a bare repository.
                args: &[
                    "-c",
                    "safe.directory=*",
                    "-c",
                    "safe.bareRepository=explicit",
                    "remote",
                    "-v",
                ],
                is_about_workspace: true,
                parse: parse_remotes,
                ..Self::PLAIN
            },
        }
    }
}

/// The terminal width that the environment of a package manager states, so that its answer has no
/// line breaks.
const ANSWER_COLUMNS: &str = "4000";

/// Returns an answer with the host of the registry `url`, and with `variables` that name the
/// registry.
fn registry_answer(
    url: Option<&str>,
    variables: &'static [&'static str],
) -> ConfiguredRegistryHosts {
    let url = url.map(without_user).and_then(|url| HttpUrl::parse(&url).ok());
    let Some(url) = url else { return ConfiguredRegistryHosts::default() };
    let value = url.uri().to_string();
    ConfiguredRegistryHosts {
        hosts: vec![host_rule(&url)],
        variables: variables.iter().map(|&name| (name, value.clone())).collect(),
    }
}

/// Returns an answer with the hosts of the URLs among `words`.
fn answer_with<'w>(words: impl Iterator<Item = &'w str>) -> ConfiguredRegistryHosts {
    let mut hosts: Vec<String> = Vec::new();
    for rule in words.filter_map(rule_for_url) {
        if hosts.len() < HOSTS_MAX && !hosts.contains(&rule) {
            hosts.push(rule);
        }
    }
    ConfiguredRegistryHosts { hosts, variables: Vec::new() }
}

fn parse_words(answer: &str) -> ConfiguredRegistryHosts {
    answer_with(answer.split_whitespace())
}

/// Reads npm's answer: the default registry, and the registries of scopes such as `@acme:registry`.
fn parse_npm(answer: &str) -> ConfiguredRegistryHosts {
    let settings: BTreeMap<String, Value> = serde_json::from_str(answer).unwrap_or_default();
    let default = settings.get("registry").and_then(Value::as_str);
    let scopes = settings.iter().filter(|(name, _)| name.ends_with(":registry"));
    let scopes = answer_with(scopes.filter_map(|(_, url)| url.as_str()));
    let mut found = registry_answer(default, &["npm_config_registry"]);
    let known = found.hosts.clone();
    found.hosts.extend(scopes.hosts.into_iter().filter(|host| !known.contains(host)));
    found
}

/// Reads Go's answer: the module proxies, separated by `,` or `|`, and the checksum database,
/// written as a host, as a host with its key, or as a key with a URL.
fn parse_go(answer: &str) -> ConfiguredRegistryHosts {
    let mut lines = answer.lines().map(str::trim);
    let proxies = lines.next().unwrap_or_default();
    let database = lines.next().unwrap_or_default();
    let (key, url) = database.split_once(' ').unwrap_or((database, ""));
    let host = key.split('+').next().unwrap_or_default();
    let checksums = match url {
        "" => format!("https://{host}"),
        url => url.to_owned(),
    };
    let is_checked = !["", "off"].contains(&host);
    let found = answer_with(
        proxies.split([',', '|']).chain(is_checked.then_some(checksums.as_str())).map(str::trim),
    );
    if found.hosts.is_empty() || proxies.contains('@') || database.contains('@') {
        return found;
    }
    let variables = vec![("GOPROXY", proxies.to_owned()), ("GOSUMDB", database.to_owned())];
    ConfiguredRegistryHosts { variables, ..found }
}

/// Reads the repositories in an error of Maven: `[local (/home/ada/.m2), central (https://…)]`.
fn parse_maven(error: &str) -> ConfiguredRegistryHosts {
    let addresses = error.split('(').skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    answer_with(addresses)
}

/// Reads the remotes of a git repository. Each line of `remotes` has the name, the URL and the use
/// (fetch or push) of a remote.
fn parse_remotes(remotes: &str) -> ConfiguredRegistryHosts {
    let urls = remotes.lines().filter_map(|line| line.split_whitespace().nth(1));
    let mut hosts: Vec<String> = Vec::new();
    for rule in urls.filter_map(|url| rule_for_url(url).or_else(|| rule_for_ssh(url))) {
        if hosts.len() < HOSTS_MAX && !hosts.contains(&rule) {
            hosts.push(rule);
        }
    }
    ConfiguredRegistryHosts { hosts, variables: Vec::new() }
}

/// Returns the rule that allows the host of an SSH remote: `ssh://git@host/path` or
/// `git@host:path`.
fn rule_for_ssh(remote: &str) -> Option<String> {
    let rest = remote.strip_prefix("ssh://");
    let authority = match rest {
        Some(rest) => rest.split('/').next()?,
        None => remote.split_once(':').map(|(host, _)| host).filter(|host| host.contains('@'))?,
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if has_port { host.to_owned() } else { format!("{host}:22") })
}

/// Returns the rule that allows the host of `url`. `None` if `url` is not an HTTP URL.
pub fn rule_for_url(url: &str) -> Option<String> {
    HttpUrl::parse(&without_user(url)).ok().map(|url| host_rule(&url))
}

/// Returns the rule that allows the host of `url`.
fn host_rule(url: &HttpUrl) -> String {
    let host = match url.host() {
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    match url.port() {
        443 | 80 => host,
        port => format!("{host}:{port}"),
    }
}

/// Returns `url` without a user name and password, which the programs of a project must not see.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Returns the first line of a package manager's answer that consists of a URL.
fn first_line(answer: &str) -> Option<&str> {
    answer.lines().map(str::trim).find(|line| !line.is_empty())
}

/// Returns the first URL in a package manager's error.
fn first_url(error: &str) -> Option<&str> {
    let at = ["https://", "http://"].iter().filter_map(|scheme| error.find(scheme)).min()?;
    let rest = &error[at..];
    let is_end = |c: char| c.is_whitespace() || "`'\"()<>,".contains(c);
    Some(&rest[..rest.find(is_end).unwrap_or(rest.len())])
}

/// Returns the package index that pip's help text `help` states as the default. This is the index
/// that the user configured.
fn default_index(help: &str) -> Option<&str> {
    let (_, rest) = help.split_once("--index-url <url>")?;
    let (description, _) = rest.split_once("--extra-index-url").unwrap_or((rest, ""));
    let (_, rest) = description.split_once("(default")?;
    let (url, _) = rest.split_once(')')?;
    Some(url.trim_start_matches(':').trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the parser of `source` finds exactly `hosts` in `answer`. Returns the parsed
    /// answer.
    #[track_caller]
    fn check(source: PackageHostSource, answer: &str, hosts: &[&str]) -> ConfiguredRegistryHosts {
        let found = RegistryHostQuery::for_source(source).read(answer);
        assert_eq!(found.hosts, hosts, "{answer}");
        found
    }

    #[test]
    fn the_index_is_read_from_the_help_of_pip() {
        let help = "  -i, --index-url <url>       Base URL of the Python Package Index (default \
                    https://packages.example.com/simple). This should point to\n  \
                    --extra-index-url <url>     Extra URLs (default no)\n";
        assert_eq!(default_index(help), Some("https://packages.example.com/simple"));
        let other = "--index-url <url> An index.\n--extra-index-url <url> (default x)\n";
        assert_eq!(default_index(other), None);
        assert_eq!(default_index(""), None);
    }

    #[test]
    fn a_user_name_and_password_are_removed_from_a_url() {
        for (url, expected) in [
            ("https://ada:key@a.example/simple/", "https://a.example/simple/"),
            ("https://****@a.example:8443", "https://a.example:8443"),
            ("https://a.example/@scope", "https://a.example/@scope"),
            ("undefined", "undefined"),
        ] {
            assert_eq!(without_user(url), expected);
        }
    }

    #[test]
    fn the_rule_of_a_registry_names_its_host_and_an_unusual_port() {
        for (url, rule) in [
            ("https://a.example/x", "a.example"),
            ("http://a.example", "a.example"),
            ("http://a.example:4873/", "a.example:4873"),
            ("https://[fd12::1]:8443/", "[fd12::1]:8443"),
        ] {
            assert_eq!(rule_for_url(url).as_deref(), Some(rule));
        }
    }

    #[test]
    fn a_registry_is_read_from_the_answer_of_each_package_manager() {
        let npm = r#"{"registry": "https://ada:key@a.example/npm/", "replace-registry-host": "npmjs",
                      "@acme:registry": "https://b.example/", "@x:registry": "https://a.example/"}"#;
        let npm = check(PackageHostSource::Npm, npm, &["a.example", "b.example"]);
        let expected = [("npm_config_registry", "https://a.example/npm/".to_owned())];
        assert_eq!(npm.variables, expected);
        check(PackageHostSource::Npm, "undefined\n", &[]);
        check(PackageHostSource::Pnpm, "https://a.example/npm/\n", &["a.example"]);
        check(PackageHostSource::ModernYarn, "https://a.example/\n", &["a.example"]);
        let cargo = "    Updating crates index\nerror: download of config.json failed\n\n\
                     Caused by:\n  failed to download from `https://index.a.example/config.json`\n";
        check(PackageHostSource::Cargo, cargo, &["index.a.example"]);
        let uv = "error: Failed to fetch: `https://a.example/simple/toolgate/`\n";
        let uv = check(PackageHostSource::Uv, uv, &["a.example"]);
        assert_eq!(uv.variables[0].1, "https://a.example/simple");
        let go = "https://proxy.a.example|https://b.example,direct\nsum.a.example\n";
        let go =
            check(PackageHostSource::Go, go, &["proxy.a.example", "b.example", "sum.a.example"]);
        assert_eq!(go.variables[1], ("GOSUMDB", "sum.a.example".to_owned()));
        check(PackageHostSource::Go, "https://proxy.a.example\noff\n", &["proxy.a.example"]);
        check(PackageHostSource::Go, "off\nsum+key https://b.example/sum\n", &["b.example"]);
        let maven = "from the repositories [local (/home/ada/.m2), central (https://a.example/m2)]";
        check(PackageHostSource::Maven, maven, &["a.example"]);
        let nuget = "E https://a.example/v3/index.json\nD https://b.example/v3/index.json\n";
        check(PackageHostSource::Nuget, nuget, &["a.example"]);
        let apt = "# deb http://no.example/ x\ndeb http://a.example/debian stable main\n\
                   URIs: https://b.example/debian\n";
        check(PackageHostSource::Apt, apt, &["a.example", "b.example"]);
        let git = "origin\tgit@a.example:acme/x.git (fetch)\nup\thttps://b.example/x (fetch)\n\
                   up\tssh://git@c.example:2222/x (push)\nlocal\t/srv/x.git (fetch)\n";
        check(PackageHostSource::Git, git, &["a.example:22", "b.example", "c.example:2222"]);
    }

    #[test]
    fn an_invalid_host_does_not_hide_the_others() {
        let maven = "from [blocker (http://0.0.0.0/), central (https://a.example/m2)]";
        check(PackageHostSource::Maven, maven, &["a.example"]);
        let git = "a\tgit@*.example:x (fetch)\nb\thttps://b.example/x (fetch)\n";
        check(PackageHostSource::Git, git, &["b.example"]);
    }
}
