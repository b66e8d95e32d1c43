//! What is said of an upstream in `[upstream.NAME]`.

use std::collections::BTreeMap;

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use toolgate_contract::ToolId;

use crate::oauth::OAuth;
use crate::upstream::revision;

/// The upstreams by name: each a table `[upstream.NAME]`.
pub type Tables = BTreeMap<String, Settings>;

/// Another MCP server whose tools, resources and prompts are served here: give `command` or `url`.
///
/// Where a value says `${NAME}`, the server's own variable `NAME` stands there, and is said to
/// nobody but that upstream.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether it is served.
    pub enabled: bool,
    /// The program that speaks MCP on its standard input and output, and its arguments, e.g. `["npx", "-y", "@modelcontextprotocol/server-everything"]`.
    pub command: Vec<String>,
    /// Variables of the program's environment, beside those of `keep_env`.
    pub env: BTreeMap<String, String>,
    /// The server's own variables that the program is given.
    pub keep_env: Vec<String>,
    /// The folder that the program starts in, relative to the one that is served, e.g. `.`; an empty one unless it is said. In a folder that others write they decide what is run: `npx`, `python -m` and the like look there first.
    pub cwd: Option<String>,
    /// How the program is confined: `read-only`, `workspace`, `network` or `off`, as `sandbox.profile` has them.
    pub sandbox: String,
    /// Where it is reached, e.g. `https://mcp.example/mcp`.
    pub url: Option<String>,
    /// How it is spoken to at `url`: `http` (Streamable HTTP), `sse` (HTTP+SSE of 2024-11-05) or `websocket`.
    pub transport: Transport,
    /// Headers of each request to `url`, e.g. `Authorization = "Bearer ${TOKEN}"`. The client's own never go there.
    pub headers: BTreeMap<String, String>,
    /// How we are let in at `url`, where it asks for OAuth.
    pub oauth: Option<OAuth>,
    /// Whether `url` may be an address of a private network. This machine's own always may.
    pub private_network: bool,
    /// The revision of MCP that is spoken to it, where it is not to be found out, e.g. `2025-06-18`.
    pub revision: Option<String>,
    /// What its tools and prompts are called after: the upstream's name, unless said otherwise; empty for their own names. Letters, digits, `_` and `-`, in parts with a dot between them.
    pub prefix: Option<String>,
    /// Which of its tools are served, by its own names with `*`.
    pub tools: Vec<String>,
    /// Which of them are not, whatever `tools` says.
    pub without: Vec<String>,
    /// Whether its resources are served.
    pub resources: bool,
    /// Whether its prompts are served.
    pub prompts: bool,
    /// Whether clients are told its `instructions`, after this server's own, up to 4 KiB of them.
    pub instructions: bool,
    /// The folders it is told that it works in, as absolute paths, in place of those of whoever calls. Without it a client's own are told to an upstream that asks for them while it works for that client.
    pub roots: Vec<String>,
    /// How long it may take to begin, in milliseconds.
    pub start_ms: u64,
    /// Who share a connection to it, or a program: `all`, the calls of one `caller`, or those of one `session`, for a server that keeps something of its clients. Where a client has no session (2026-07-28), those of its caller. At most 256 are kept, each until its session is over, or it has had nothing to do for `idle_ms`, or for five minutes.
    pub shared_by: SharedBy,
    /// How long one call of its tools may take, in milliseconds; without it, as long as any.
    pub deadline_ms: Option<u64>,
    /// How long a program may have nothing to do before it is ended, in milliseconds; 0 for ever.
    pub idle_ms: u64,
    /// How long a program may live before another takes its place once it has nothing to do, in milliseconds; 0 for ever.
    pub lifetime_ms: u64,
    /// The most connections, or processes, of an upstream that asks its clients (revisions before 2026-07-28): over a pipe nothing says which call asks, and what a client can be asked is said once, so each call whose client can be asked has one for itself.
    pub processes: usize,
    /// The most calls of it at once, which count apart from `limits.calls`; further ones wait as `limits.waiting` and `limits.wait_ms` say.
    pub at_once: usize,
    /// How much text of an answer is given at once, in bytes: the rest of a longer one is kept, to be read on with `results.read`; 0 for all. What is structured counts as its JSON, unless its schema was promised.
    pub answer_bytes: usize,
    /// How much of an answer that is no text (pictures, sounds, files) is given at once, in bytes: links stand for the largest of more, which are kept; 0 for all.
    pub media_bytes: usize,
    /// Whether its tools' output schemas are promised to clients. Where they are not, a structured answer above `answer_bytes` is cut as a text is; answers are held against the schemas all the same.
    pub promise_outputs: bool,
    /// The longest message that is read from it, in bytes.
    pub message_bytes: usize,
}

/// The most calls of one upstream, or programs, at once.
const AT_ONCE_MAX: usize = 100_000;

/// How an upstream is spoken to at its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Streamable HTTP.
    #[default]
    Http,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// Messages as texts of a WebSocket, at a `ws:` or `wss:` URL.
    WebSocket,
}

/// Who share a connection to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SharedBy {
    /// Whoever calls.
    #[default]
    All,
    /// The calls of one caller.
    Caller,
    /// The calls of one session.
    Session,
}

impl Transport {
    /// Refuses a URL at which nobody is spoken to so.
    fn check(self, url: &str) -> Result<(), String> {
        let url = url.trim();
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let writes = match self {
            Self::Http | Self::Sse => "`http://` or `https://`",
            Self::WebSocket => "`ws://` or `wss://`",
        };
        match (self, scheme.as_deref()) {
            // What a variable says is seen when it is needed.
            _ if url.starts_with("${") => Ok(()),
            (Self::Http | Self::Sse, Some("http" | "https"))
            | (Self::WebSocket, Some("ws" | "wss")) => Ok(()),
            (Self::Http | Self::Sse, Some("ws" | "wss")) => Err(format!(
                "`url` is `{url}`, where a WebSocket is: say `transport = \"websocket\"`"
            )),
            (Self::Http | Self::Sse | Self::WebSocket, _) => {
                Err(format!("`url` is `{url}`; write a URL that begins with {writes}"))
            }
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            command: Vec::new(),
            env: BTreeMap::new(),
            keep_env: ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"].map(str::to_owned).into(),
            cwd: None,
            sandbox: "off".to_owned(),
            url: None,
            transport: Transport::default(),
            headers: BTreeMap::new(),
            oauth: None,
            private_network: false,
            revision: None,
            prefix: None,
            tools: vec!["*".to_owned()],
            without: Vec::new(),
            resources: true,
            prompts: true,
            instructions: true,
            roots: Vec::new(),
            start_ms: 30_000,
            shared_by: SharedBy::default(),
            deadline_ms: None,
            idle_ms: 0,
            lifetime_ms: 0,
            processes: 8,
            at_once: 64,
            answer_bytes: 256 << 10,
            media_bytes: 4 << 20,
            promise_outputs: true,
            message_bytes: 16 << 20,
        }
    }
}

impl Settings {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// Which setting, and what to do.
    pub fn check(&self) -> Result<(), String> {
        match (self.command.is_empty(), &self.url) {
            (true, None) => return Err("say `command` or `url`".to_owned()),
            (false, Some(_)) => return Err("say `command` or `url`, not both".to_owned()),
            (true, Some(url)) => self.transport.check(url)?,
            (false, None) => {}
        }
        if let Some(oauth) = &self.oauth {
            if self.url.is_none() {
                return Err("`oauth` is for an upstream at a `url`".to_owned());
            }
            if self.says_authorization() {
                return Err("say `oauth` or `headers.Authorization`, not both".to_owned());
            }
            oauth.check()?;
        }
        if let Some(prefix) = self.prefix.as_deref().filter(|prefix| !prefix.is_empty())
            && ToolId::foreign(prefix).is_none()
        {
            return Err(format!(
                "`prefix` is {prefix:?}; it has letters, digits, `_` and `-`, in parts with a dot \
                 between them, or is empty"
            ));
        }
        if let Some(name) = &self.revision {
            revision(name)?;
        }
        for name in self.headers.keys() {
            if HeaderName::try_from(name).is_err() {
                return Err(format!("`headers` names {name:?}, which is no name of a header"));
            }
        }
        for name in self.env.keys().chain(&self.keep_env) {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("{name:?} is no name of a variable"));
            }
        }
        let nothing = [
            (self.at_once == 0, "at_once", "nothing could be called"),
            (self.processes == 0, "processes", "nothing could be asked"),
            (self.start_ms == 0, "start_ms", "it could never begin"),
            (
                self.deadline_ms == Some(0),
                "deadline_ms",
                "no call could end; leave it out for none",
            ),
            (self.message_bytes == 0, "message_bytes", "nothing could be read from it"),
        ];
        if let Some((_, setting, why)) = nothing.into_iter().find(|(is, ..)| *is) {
            return Err(format!("`{setting}` is 0: {why}"));
        }
        for (setting, value) in [("at_once", self.at_once), ("processes", self.processes)] {
            if value > AT_ONCE_MAX {
                return Err(format!("`{setting}` is {value}; at most {AT_ONCE_MAX} are served"));
            }
        }
        self.is_of_use()
    }

    /// What of it is of no use to whoever is spoken to so, or cannot be meant.
    fn is_of_use(&self) -> Result<(), String> {
        let Self { command, env, cwd, url, headers, sandbox, roots, .. } = self;
        let idle = match url {
            Some(_) => {
                [(!env.is_empty(), "env"), (cwd.is_some(), "cwd"), (sandbox != "off", "sandbox")]
            }
            None => [
                (!headers.is_empty(), "headers"),
                (self.private_network, "private_network"),
                (false, ""),
            ],
        };
        if let Some((_, setting)) = idle.into_iter().find(|(is, _)| *is) {
            let of = if url.is_some() { "a `command`" } else { "a `url`" };
            return Err(format!("`{setting}` is for an upstream with {of}, which this is not"));
        }
        if command.first().is_some_and(|program| program.trim().is_empty()) {
            return Err("`command` names no program".to_owned());
        }
        if let Some(path) = roots.iter().find(|path| !path.starts_with('/')) {
            return Err(format!("`roots` has `{path}`, which is no absolute path"));
        }
        if let Some((name, _)) =
            headers.iter().find(|(_, value)| value.contains(['\r', '\n', '\0']))
        {
            return Err(format!("`headers` has a line break in `{name}`"));
        }
        let mut texts =
            self.said_alone().chain(command.iter().map(String::as_str)).chain(url.as_deref());
        if let Some(text) =
            texts.find(|text| text.rsplit_once("${").is_some_and(|(_, name)| !name.contains('}')))
        {
            // What is said so may be half a secret.
            let at = text.rfind("${").unwrap_or_default();
            return Err(format!("a `${{` is not closed: `{}`", &text[at..]));
        }
        Ok(())
    }

    /// What is said to it alone.
    pub fn said_alone(&self) -> impl Iterator<Item = &str> {
        let oauth = self.oauth.iter().flat_map(|oauth| [&oauth.client_secret, &oauth.client_key]);
        let texts = self.headers.values().chain(self.env.values()).chain(oauth.flatten());
        texts.map(String::as_str)
    }

    /// Whether it is said in so many words what we are let in with.
    pub(crate) fn says_authorization(&self) -> bool {
        self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_begins_as_its_transport_has_it() {
        let check = |transport, url: &str| {
            Settings { transport, url: Some(url.to_owned()), ..Settings::default() }.check()
        };
        for url in ["http://a", "HTTPS://a/b", "${URL}", "https://${HOST}/mcp"] {
            assert_eq!(check(Transport::Http, url), Ok(()), "{url}");
        }
        for url in ["ws://a", "wss://a/b", "${URL}"] {
            assert_eq!(check(Transport::WebSocket, url), Ok(()), "{url}");
        }
        let says = |transport, url, what: &str| {
            let why = check(transport, url).expect_err(url);
            assert!(why.contains(what), "{why}");
        };
        says(Transport::Http, "wss://a", "transport = \"websocket\"");
        says(Transport::Sse, "a.example/mcp", "`https://`");
        says(Transport::WebSocket, "http://news.example", "`wss://`");
    }

    #[test]
    fn what_could_never_work_is_refused() {
        let sound = || Settings { command: vec!["it".to_owned()], ..Settings::default() };
        assert_eq!(sound().check(), Ok(()));
        let named = |name: &str| BTreeMap::from([(name.to_owned(), "1".to_owned())]);
        for (odd, says) in [
            (Settings { revision: Some("2025-11".to_owned()), ..sound() }, "2025-11-25"),
            (Settings { start_ms: 0, ..sound() }, "`start_ms` is 0"),
            (Settings { deadline_ms: Some(0), ..sound() }, "`deadline_ms` is 0"),
            (Settings { message_bytes: 0, ..sound() }, "`message_bytes` is 0"),
            (Settings { at_once: 0, ..sound() }, "`at_once` is 0"),
            (Settings { processes: 0, ..sound() }, "`processes` is 0"),
            (Settings { headers: named("X Key"), ..sound() }, "no name of a header"),
            (Settings { env: named("A=B"), ..sound() }, "no name of a variable"),
            (Settings { keep_env: vec![String::new()], ..sound() }, "no name of a variable"),
        ] {
            let why = odd.check().expect_err(says);
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_prefix_is_of_what_ids_are_made_of_or_empty() {
        let checked = |prefix: &str| {
            let (command, prefix) = (vec!["it".to_owned()], Some(prefix.to_owned()));
            Settings { command, prefix, ..Settings::default() }.check()
        };
        for sound in ["", "git", "My-Tools_2", "a.b"] {
            assert_eq!(checked(sound), Ok(()), "{sound}");
        }
        for odd in ["a b", "ä", ".", "a..b", "a.", "a/b"] {
            assert!(checked(odd).is_err_and(|why| why.contains("`prefix`")), "{odd}");
        }
    }
}
