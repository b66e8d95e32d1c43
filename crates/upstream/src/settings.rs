//! Settings of `[upstream.NAME]`.

mod oauth;

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::ToolId;
use toolgate_dialects::mcp::upstream::{McpRevision, REVISIONS};

pub use oauth::{OAuthGrant, OAuthSettings};

/// The upstreams' settings by name, one table `[upstream.NAME]` each.
pub type UpstreamSettingsByName = BTreeMap<String, UpstreamSettings>;

/// First character of an entry in the setting `tools` that excludes the matching tools.
pub const EXCLUSION: char = '!';

/// Another MCP server whose tools, resources and prompts are served here. Set `command` or `url`.
///
/// `${NAME}` in a value inserts the server's environment variable `NAME`. It is sent to that
/// upstream only.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamSettings {
    /// `true` (the default) serves this upstream, and `false` turns it off.
    pub enabled: bool,
    /// Program that serves MCP on its standard input and output, with its arguments, e.g.
    /// `["npx", "-y", "@modelcontextprotocol/server-everything"]`.
    pub command: Vec<String>,
    /// Environment variables of the program, in addition to `keep_env`.
    pub env: BTreeMap<String, String>,
    /// Environment variables of the server that the program inherits. The default is `PATH`, `HOME`
    /// and similar variables, and the variables for proxies and certificate authorities.
    pub keep_env: Vec<String>,
    /// Folder in which the program starts, relative to the workspace, e.g. `.`. By default, the
    /// program starts in an empty folder. Do not choose a folder that others can write to: `npx`,
    /// `python -m` and similar programs look in that folder first, so other users could replace the
    /// program.
    pub cwd: Option<String>,
    /// Sandbox profile of the program, as in `sandbox.profile`: `read-only`, `workspace`, `network`
    /// or `off` (the default).
    pub sandbox: String,
    /// Hosts that the program may reach, as in `sandbox.hosts`. To use `hosts`, set `sandbox` to
    /// `read-only` or `workspace`.
    pub hosts: Vec<String>,
    /// URL of the server, e.g. `https://mcp.example/mcp`.
    pub url: Option<String>,
    /// Transport at `url`: `http` (Streamable HTTP, the default), `sse` (HTTP+SSE, 2024-11-05) or
    /// `websocket`.
    pub transport: UpstreamTransport,
    /// Headers of each request to `url`, e.g. `Authorization = "Bearer ${TOKEN}"`. A client's own
    /// headers are never forwarded.
    pub headers: BTreeMap<String, String>,
    /// OAuth settings, if the server at `url` requires OAuth.
    pub oauth: Option<OAuthSettings>,
    /// `true` allows `url` to resolve to a private network address. The default is `false`.
    /// Loopback addresses are always allowed.
    pub private_network: bool,
    /// MCP revision to use, e.g. `2025-06-18`. By default, toolgate and the server negotiate the
    /// revision.
    pub revision: Option<String>,
    /// Prefix of the upstream's tools and prompts. The default is the upstream's name. With an
    /// empty prefix, tools keep the upstream's own names. A prefix consists of letters, digits, `_`
    /// and `-`, in parts separated by dots.
    pub prefix: Option<String>,
    /// Tools to serve, by the upstream's own names. `*` matches any text. By default, toolgate
    /// serves all tools.
    ///
    /// An entry such as `!delete_*` leaves tools out, even if other entries match them. If all
    /// entries start with `!`, toolgate serves all other tools.
    pub tools: Vec<String>,
    /// Parts of the upstream to serve besides its tools: `resources`, `prompts` and `instructions`.
    /// By default, toolgate serves all parts. Clients get up to 4 KiB of the upstream's
    /// instructions, after toolgate's own.
    pub parts: Vec<ServedUpstreamFeature>,
    /// Absolute paths of the folders that toolgate sends as roots. By default, an upstream that
    /// asks for roots during a call gets the roots of the calling client.
    pub roots: Vec<String>,
    /// Maximum time for the upstream to start and answer, in milliseconds. The default is 30000.
    pub start_ms: u64,
    /// Sharing of the upstream's connection or program. With `all` (the default), all callers share
    /// one connection or program. With `caller`, each caller has a separate connection or program.
    /// With `session`, each session has a separate connection or program. Use `caller` or `session`
    /// for a server that keeps state per client. For clients without sessions (2026-07-28),
    /// `session` means `caller`. toolgate keeps at most 256 connections. A connection ends with its
    /// session, or after it has been idle for five minutes.
    pub shared_by: ConnectionSharing,
    /// Timeout of a tool call, in milliseconds. The default is `limits.deadline_ms`.
    pub deadline_ms: Option<u64>,
    /// Maximum number of concurrent calls of the upstream's tools, 64 by default. `limits.calls`
    /// does not count calls of upstream tools. Further calls wait for up to `limits.wait_ms`.
    pub at_once: usize,
    /// Limits of the upstream's connections and results, which a settings file cannot change.
    #[serde(skip)]
    pub limits: UpstreamLimits,
}

/// Limits of an upstream's connections and results.
///
/// They are constants, not settings. A program that nobody calls costs little, and an agent reads
/// long results in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Idle time after which a connection is closed. `None`, the default, never closes it.
    pub idle: Option<Duration>,
    /// Maximum number of bytes of text in a result; 0 for no limit. The rest is stored for
    /// `results.read`. A structured value counts as its JSON, unless the tool has an output schema.
    /// Default: 256 KiB.
    pub text_bytes: usize,
    /// Maximum number of bytes of images, audio and files in a result; 0 for no limit. The largest
    /// are stored and replaced by links. Default: 4 MiB.
    pub media_bytes: usize,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self { idle: None, text_bytes: 256 << 10, media_bytes: 4 << 20 }
    }
}

/// Upper limit of the setting `at_once`, the maximum number of concurrent calls of an upstream.
const AT_ONCE_MAX: usize = 100_000;

/// Transport of an upstream at a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamTransport {
    /// Streamable HTTP.
    #[default]
    Http,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// Text messages of a WebSocket at a `ws:` or `wss:` URL.
    WebSocket,
}

/// The callers that share a connection to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionSharing {
    /// All callers share one connection or program.
    #[default]
    All,
    /// The calls of one caller share a connection or program.
    Caller,
    /// The calls of one session share a connection or program.
    Session,
}

/// Part of an upstream that is served besides its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServedUpstreamFeature {
    /// Resources and skills.
    Resources,
    /// Prompts.
    Prompts,
    /// Instructions for the model.
    Instructions,
}

impl UpstreamTransport {
    /// Checks that the scheme of `url` fits the transport.
    fn check(self, url: &str) -> Result<(), String> {
        let url = url.trim();
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let schemes = match self {
            Self::Http | Self::Sse => "`http://` or `https://`",
            Self::WebSocket => "`ws://` or `wss://`",
        };
        match (self, scheme.as_deref()) {
            // A value from a variable is checked when it is used.
            _ if url.starts_with("${") => Ok(()),
            (Self::Http | Self::Sse, Some("http" | "https"))
            | (Self::WebSocket, Some("ws" | "wss")) => Ok(()),
            (Self::Http | Self::Sse, Some("ws" | "wss")) => {
                Err(format!("`url` is `{url}`, a WebSocket: set `transport = \"websocket\"`"))
            }
            (Self::Http | Self::Sse | Self::WebSocket, _) => {
                Err(format!("`url` is `{url}`; it must start with {schemes}"))
            }
        }
    }
}

/// Environment variables that programs inherit by default. Proxies and certificate authorities are
/// often the only way out of a company's network.
const KEPT_VARIABLES: [&str; 16] = [
    "PATH",
    "HOME",
    "LANG",
    "TERM",
    "TMPDIR",
    "USER",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
];

impl Default for UpstreamSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            command: Vec::new(),
            env: BTreeMap::new(),
            keep_env: KEPT_VARIABLES.map(str::to_owned).into(),
            cwd: None,
            sandbox: "off".to_owned(),
            hosts: Vec::new(),
            url: None,
            transport: UpstreamTransport::default(),
            headers: BTreeMap::new(),
            oauth: None,
            private_network: false,
            revision: None,
            prefix: None,
            tools: vec!["*".to_owned()],
            parts: vec![
                ServedUpstreamFeature::Resources,
                ServedUpstreamFeature::Prompts,
                ServedUpstreamFeature::Instructions,
            ],
            roots: Vec::new(),
            start_ms: 30_000,
            shared_by: ConnectionSharing::default(),
            deadline_ms: None,
            at_once: 64,
            limits: UpstreamLimits::default(),
        }
    }
}

impl UpstreamSettings {
    /// Checks the settings of the upstream.
    ///
    /// # Errors
    ///
    /// Returns the invalid setting and the fix.
    pub fn check(&self) -> Result<(), String> {
        match (self.command.is_empty(), &self.url) {
            (true, None) => return Err("set `command` or `url`".to_owned()),
            (false, Some(_)) => return Err("set `command` or `url`, not both".to_owned()),
            (true, Some(url)) => self.transport.check(url)?,
            (false, None) => {}
        }
        if let Some(oauth) = &self.oauth {
            if self.url.is_none() {
                return Err("`oauth` only applies to an upstream with a `url`".to_owned());
            }
            if self.has_authorization() {
                return Err("set `oauth` or `headers.Authorization`, not both".to_owned());
            }
            oauth.check()?;
        }
        if let Some(prefix) = self.prefix.as_deref().filter(|prefix| !prefix.is_empty())
            && ToolId::foreign(prefix).is_none()
        {
            return Err(format!(
                "`prefix` is {prefix:?}; it must be empty, or have letters, digits, `_` and `-` in \
                 parts separated by dots"
            ));
        }
        if let Some(name) = &self.revision {
            revision_named(name)?;
        }
        for name in self.headers.keys() {
            if HeaderName::try_from(name).is_err() {
                return Err(format!("`headers` contains {name:?}, which is not a header name"));
            }
        }
        for name in self.env.keys().chain(&self.keep_env) {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("{name:?} is not the name of an environment variable"));
            }
        }
        let zeros = [
            (self.at_once == 0, "at_once", "so no call would be possible"),
            (self.start_ms == 0, "start_ms", "so the upstream could never start"),
            (
                self.deadline_ms == Some(0),
                "deadline_ms",
                "so no call could finish; leave it out for the general timeout",
            ),
        ];
        if let Some((_, setting, why)) = zeros.into_iter().find(|(is, ..)| *is) {
            return Err(format!("`{setting}` is 0, {why}"));
        }
        if self.at_once > AT_ONCE_MAX {
            let value = self.at_once;
            return Err(format!("`at_once` is {value}; the maximum is {AT_ONCE_MAX}"));
        }
        self.check_fit()
    }

    /// Returns an error if a setting has no effect, such as `env` for an upstream at a URL. Also
    /// checks the values of the program, the roots and the headers.
    fn check_fit(&self) -> Result<(), String> {
        let Self { command, env, cwd, url, headers, sandbox, hosts, roots, .. } = self;
        let unused = match url {
            Some(_) => [
                (!env.is_empty(), "env"),
                (cwd.is_some(), "cwd"),
                (sandbox != "off", "sandbox"),
                (!hosts.is_empty(), "hosts"),
            ],
            None => [
                (!headers.is_empty(), "headers"),
                (self.private_network, "private_network"),
                (false, ""),
                (false, ""),
            ],
        };
        if let Some((_, setting)) = unused.into_iter().find(|(is, _)| *is) {
            let of = if url.is_some() { "a `command`" } else { "a `url`" };
            return Err(format!("`{setting}` only applies to an upstream with {of}"));
        }
        if command.first().is_some_and(|program| program.trim().is_empty()) {
            return Err("the program in `command` is empty".to_owned());
        }
        if let Some(path) = roots.iter().find(|path| !path.starts_with('/')) {
            return Err(format!("`roots` contains `{path}`, which is not an absolute path"));
        }
        if let Some((name, _)) =
            headers.iter().find(|(_, value)| value.contains(['\r', '\n', '\0']))
        {
            return Err(format!("the value of the header `{name}` has a line break"));
        }
        let mut texts =
            self.private_values().chain(command.iter().map(String::as_str)).chain(url.as_deref());
        if let Some(text) =
            texts.find(|text| text.rsplit_once("${").is_some_and(|(_, name)| !name.contains('}')))
        {
            // The text before it may be part of a secret.
            let at = text.rfind("${").unwrap_or_default();
            return Err(format!("`${{` has no closing brace: `{}`", &text[at..]));
        }
        Ok(())
    }

    /// Returns true if the settings serve `part` of the upstream.
    pub(crate) fn serves(&self, part: ServedUpstreamFeature) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the values in the settings, such as headers, that only this upstream may see.
    pub fn private_values(&self) -> impl Iterator<Item = &str> {
        let oauth = self.oauth.iter().flat_map(|oauth| [&oauth.client_secret, &oauth.client_key]);
        let texts = self.headers.values().chain(self.env.values()).chain(oauth.flatten());
        texts.map(String::as_str)
    }

    /// Returns true if the setting `headers` contains `Authorization`.
    pub(crate) fn has_authorization(&self) -> bool {
        self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
    }
}

/// Returns the MCP revision with the name `name`.
///
/// # Errors
///
/// Returns an error that lists the known revisions.
pub(crate) fn revision_named(name: &str) -> Result<&'static McpRevision, String> {
    REVISIONS.iter().find(|revision| revision.name == name).ok_or_else(|| {
        let known: Vec<_> = REVISIONS.iter().map(|revision| revision.name).collect();
        format!("unknown revision `{name}`; known revisions are {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_must_start_with_a_scheme_of_its_transport() {
        let check = |transport, url: &str| {
            UpstreamSettings { transport, url: Some(url.to_owned()), ..UpstreamSettings::default() }
                .check()
        };
        for url in ["http://a", "HTTPS://a/b", "${URL}", "https://${HOST}/mcp"] {
            assert_eq!(check(UpstreamTransport::Http, url), Ok(()), "{url}");
        }
        for url in ["ws://a", "wss://a/b", "${URL}"] {
            assert_eq!(check(UpstreamTransport::WebSocket, url), Ok(()), "{url}");
        }
        let expect_error = |transport, url, what: &str| {
            let why = check(transport, url).expect_err(url);
            assert!(why.contains(what), "{why}");
        };
        expect_error(UpstreamTransport::Http, "wss://a", "transport = \"websocket\"");
        expect_error(UpstreamTransport::Sse, "a.example/mcp", "`https://`");
        expect_error(UpstreamTransport::WebSocket, "http://news.example", "`wss://`");
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let valid =
            || UpstreamSettings { command: vec!["it".to_owned()], ..UpstreamSettings::default() };
        assert_eq!(valid().check(), Ok(()));
        let named = |name: &str| BTreeMap::from([(name.to_owned(), "1".to_owned())]);
        for (invalid, expected) in [
            (UpstreamSettings { revision: Some("2025-11".to_owned()), ..valid() }, "2025-11-25"),
            (UpstreamSettings { start_ms: 0, ..valid() }, "`start_ms` is 0"),
            (UpstreamSettings { deadline_ms: Some(0), ..valid() }, "`deadline_ms` is 0"),
            (UpstreamSettings { at_once: 0, ..valid() }, "`at_once` is 0"),
            (UpstreamSettings { headers: named("X Key"), ..valid() }, "not a header name"),
            (
                UpstreamSettings { env: named("A=B"), ..valid() },
                "not the name of an environment variable",
            ),
            (
                UpstreamSettings { keep_env: vec![String::new()], ..valid() },
                "not the name of an environment variable",
            ),
        ] {
            let why = invalid.check().expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_prefix_is_a_valid_id_or_empty() {
        let checked = |prefix: &str| {
            let command = vec!["it".to_owned()];
            let prefix = Some(prefix.to_owned());
            UpstreamSettings { command, prefix, ..UpstreamSettings::default() }.check()
        };
        for valid in ["", "git", "My-Tools_2", "a.b"] {
            assert_eq!(checked(valid), Ok(()), "{valid}");
        }
        for invalid in ["a b", "ä", ".", "a..b", "a.", "a/b"] {
            assert!(checked(invalid).is_err_and(|why| why.contains("`prefix`")), "{invalid}");
        }
    }
}
