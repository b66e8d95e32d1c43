//! Server builder for programs that embed toolgate.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use toolgate_contract::{
    AnyPrompt, AnyTool, ChangeFeed, Prompt, PromptSource, ResourceSource, SkillSource, Tool,
    ToolResultFormat, erase_prompt, erase_tool,
};
use toolgate_dialects::{AgentInstructions, Dialect, ServerInfo};
use toolgate_host::{
    Catalog, ContentLibrary, Host, JobsToolHandle, SchemaRegistry, job_resources, job_tools,
};

use crate::assembly::{audit_setup, envelope_setup, limits, wiring};
use crate::config::{Config, ResourceKind};
use crate::console::ConsoleWorkspaceAccess;
use crate::telemetry::{self, TelemetrySinks};

/// Names of clients that a user may type instead of the name of a dialect, each with the dialect of
/// that client. The error message for an unknown dialect suggests this dialect.
const CLIENT_DIALECTS: [(&str, &str); 2] = [("RAGX", "envelope"), ("ancplua", "workstation")];

/// Builder of a server with its own tools, prompts and resources.
///
/// A [`Config`] determines dialects, policy, limits and the audit log.
pub struct ServerBuilder {
    info: ServerInfo,
    tools: Vec<Arc<dyn AnyTool>>,
    prompts: Vec<Arc<dyn AnyPrompt>>,
    library: ContentLibrary,
    jobs_folder: Option<PathBuf>,
}

/// Server that is ready to accept clients. Clones share its state.
#[derive(Clone)]
pub struct PreparedServer {
    /// Host that answers requests.
    pub host: Arc<Host>,
    /// Description of the server, as dialects report it.
    pub info: Arc<ServerInfo>,
    /// Metrics and traces of the server's calls.
    pub(crate) telemetry: TelemetrySinks,
    /// Handle with which the web console reads and changes the workspace, if the server may have a
    /// console.
    pub(crate) console: Option<ConsoleWorkspaceAccess>,
}

impl ServerBuilder {
    /// Creates a builder for a server without tools. Clients see the server's `name` and `version`.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        let name = name.into();
        let info = ServerInfo {
            title: name.clone(),
            name,
            version: version.into(),
            description: String::new(),
            instructions: AgentInstructions::default(),
            jobs: false,
            resources: false,
            prompts: false,
            skills: false,
            http_sse: false,
            card: None,
            zyra_body_bytes_max: None,
            requires_auth: false,
            tls: false,
            results: ToolResultFormat::Both,
        };
        let tools = Vec::new();
        let prompts = Vec::new();
        Self { info, tools, prompts, library: ContentLibrary::default(), jobs_folder: None }
    }

    /// Sets the display name of the server. The default is the `name` given to
    /// [`ServerBuilder::new`].
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.info.title = title.into();
        self
    }

    /// Sets a one-sentence description of the server.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.info.description = about.into();
        self
    }

    /// Sets the usage instructions for agents.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.info.instructions = instructions.into().into();
        self
    }

    /// Sets the format in which MCP clients get the results of tools. By default, a result has both
    /// a text and a structured value.
    pub fn results(mut self, results: ToolResultFormat) -> Self {
        self.info.results = results;
        self
    }

    /// Adds a tool to the server.
    pub fn tool<T: Tool>(self, tool: T) -> Self {
        self.any_tool(erase_tool(tool))
    }

    /// Adds a type-erased tool to the server.
    pub fn any_tool(mut self, tool: Arc<dyn AnyTool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds a prompt to the server.
    pub fn prompt<P: Prompt>(mut self, prompt: P) -> Self {
        self.prompts.push(erase_prompt(prompt));
        self
    }

    /// Adds a source of prompts, whose list may change at run time.
    pub fn prompts(mut self, prompts: impl PromptSource) -> Self {
        self.library.prompts.push(Arc::new(prompts));
        self
    }

    /// Adds a source of resources to the server, such as a [`crate::StaticResourceSource`].
    pub fn resources(mut self, resources: impl ResourceSource) -> Self {
        self.library.resources.push(Arc::new(resources));
        self
    }

    /// Adds a source of skills to the server. Also add the skills' files as resources.
    pub fn skills(mut self, skills: impl SkillSource) -> Self {
        self.library.skills.push(Arc::new(skills));
        self
    }

    /// Sets the channel over which the server learns of changes, such as a changed list of tools,
    /// and notifies clients. Keep a clone of `changes` to send changes.
    pub fn changes(mut self, changes: ChangeFeed) -> Self {
        self.library.changes = changes;
        self
    }

    /// Enables jobs and stores them in `folder`, an absolute path. All servers that share the
    /// folder must have the same tools.
    pub fn with_jobs_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.jobs_folder = Some(folder.into());
        self
    }

    /// Builds the server under `config`.
    ///
    /// # Errors
    /// Two tools share a name, a schema is invalid, the configuration names an unknown tool, or the
    /// audit log cannot be opened.
    pub fn open(self, config: &Config) -> anyhow::Result<PreparedServer> {
        let Self { info, mut tools, prompts, mut library, jobs_folder: jobs } = self;
        if !prompts.is_empty() {
            library.prompts.insert(0, Arc::new(prompts));
        }
        let handle = JobsToolHandle::default();
        if jobs.is_some() {
            tools.extend(job_tools(&handle));
            if config.resources.offers(ResourceKind::Jobs) {
                library.resources.push(job_resources(&handle));
            }
        }
        let jobs = jobs.map(|folder| limits::job_settings_in(folder, config));
        let schemas = Arc::new(SchemaRegistry::default());
        let catalog = Catalog::with_schemas(tools, schemas.clone())?.check_schemas()?;
        let sinks = TelemetrySinks::from_config(&config.telemetry, None)?;
        let secrets = telemetry::redacted_secrets(config)?;
        telemetry::redact_from_log(secrets.clone());
        let audit = Arc::new(audit_setup::open_audit(&config.audit)?);
        let gate = wiring::build_gate(catalog, library, config, None, audit, None)?
            .with_secrets(secrets)
            .with_observer(sinks.observer());
        let envelopes = envelope_setup::new_envelopes(&config.envelope, schemas)?;
        let host = Host::new(gate, jobs).with_job_tools(&handle).with_envelopes(envelopes);
        let http_sse = config.server.http_sse;
        let card = wiring::server_card(&config.server, &info.name);
        let zyra_body_bytes_max = config.contracts.zyra_body_bytes_max;
        let requires_auth = config.requires_credential().unwrap_or(true);
        let tls = config.server.tls_certificate.is_some();
        let info = ServerInfo { http_sse, card, zyra_body_bytes_max, requires_auth, tls, ..info };
        Ok(PreparedServer::new(Arc::new(host), info, sinks))
    }
}

impl PreparedServer {
    /// Creates a prepared server with the `host`. Adds the host's features, such as jobs, to
    /// `info`.
    pub(crate) fn new(host: Arc<Host>, info: ServerInfo, telemetry: TelemetrySinks) -> Self {
        let library = host.library();
        let info = Arc::new(ServerInfo {
            jobs: host.jobs().is_ok(),
            resources: library.has_resources(),
            prompts: library.has_prompts(),
            skills: library.has_skills(),
            instructions: info.instructions.with_addition({
                let host = Arc::downgrade(&host);
                move |caller| {
                    host.upgrade().map(|host| host.instructions(caller)).unwrap_or_default()
                }
            }),
            ..info
        });
        Self { host, info, telemetry, console: None }
    }

    /// Sets the handle with which the web console reads and changes the workspace. Without a
    /// handle, the server has no console.
    pub(crate) fn with_console(self, sources: ConsoleWorkspaceAccess) -> Self {
        Self { console: Some(sources), ..self }
    }

    /// Returns all dialects (protocols) that this server can speak.
    pub fn dialects(&self) -> Vec<Arc<dyn Dialect>> {
        toolgate_dialects::all_dialects(&self.info)
    }

    /// Returns the dialects that `config` serves over HTTP on the shared address.
    ///
    /// # Errors
    /// The configuration names an unknown dialect. The message lists the known dialects.
    pub fn dialects_over_http(&self, config: &Config) -> anyhow::Result<Vec<Arc<dyn Dialect>>> {
        let configured = &config.server.dialects;
        for name in configured.iter().filter(|name| *name != "*") {
            self.dialect(name).context("in server.dialects")?;
        }
        let is_served = |name: &str| configured.iter().any(|one| one == "*" || one == name);
        let is_off = |name: &str| config.contracts.zyra_off && name == "zyra";
        let mut dialects = self.dialects();
        dialects.retain(|dialect| is_served(dialect.name()) && !is_off(dialect.name()));
        Ok(dialects)
    }

    /// Returns the dialect named `name`.
    ///
    /// # Errors
    /// No dialect has that name. The message lists the known dialects.
    pub fn dialect(&self, name: &str) -> anyhow::Result<Arc<dyn Dialect>> {
        let dialects = self.dialects();
        let found = dialects.iter().find(|dialect| dialect.name() == name).cloned();
        found.with_context(|| {
            let known: Vec<_> = dialects.iter().map(|dialect| dialect.name()).collect();
            let is_meant = |(client, dialect): &(&str, &str)| {
                client.eq_ignore_ascii_case(name)
                    && dialects.iter().any(|known| known.name() == *dialect)
            };
            if let Some((client, dialect)) = CLIENT_DIALECTS.into_iter().find(is_meant) {
                return format!("no dialect is named `{name}`; {client} clients use `{dialect}`");
            }
            format!("no dialect is named `{name}`; the dialects are {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{
        Caller, ContentBlock, Effects, NoInput, PromptMessage, RenderedPrompt, ResourceSpec,
        ToolContext, ToolError, UnstructuredResult,
    };

    use super::*;
    use crate::StaticResourceSource;

    /// Tool for tests that pours a cup.
    struct PourTestTool;

    impl Tool for PourTestTool {
        const NAME: &'static str = "pour";
        const TITLE: &'static str = "Pour";
        const DESCRIPTION: &'static str = "Pours a cup.";
        const EFFECTS: Effects = Effects::Reads;
        type Input = NoInput;
        type Output = UnstructuredResult;

        async fn run(
            &self,
            _ctx: &ToolContext,
            _input: NoInput,
        ) -> Result<UnstructuredResult, ToolError> {
            Ok(UnstructuredResult::text("poured"))
        }
    }

    /// Prompt for tests that brews a pot.
    struct BrewTestPrompt;

    impl Prompt for BrewTestPrompt {
        const NAME: &'static str = "brew";
        const TITLE: &'static str = "Brew";
        const DESCRIPTION: &'static str = "Brews a pot.";
        type Arguments = NoInput;

        async fn make(
            &self,
            _ctx: &ToolContext,
            _input: NoInput,
        ) -> Result<RenderedPrompt, ToolError> {
            Ok(RenderedPrompt {
                description: None,
                messages: vec![PromptMessage::user(ContentBlock::text("brew"))],
            })
        }
    }

    fn config() -> Config {
        let mut config = Config::default();
        "off".clone_into(&mut config.audit.to);
        config
    }

    #[test]
    fn a_server_describes_itself_by_what_it_was_given() {
        let bare =
            ServerBuilder::new("tea", "1").tool(PourTestTool).open(&config()).expect("a server");
        let ServerInfo { name, title, jobs, resources, prompts, skills, .. } = &*bare.info;
        assert_eq!((name.as_str(), title.as_str()), ("tea", "tea"));
        assert!(!(*jobs || *resources || *prompts || *skills));

        let folder = tempfile::tempdir().expect("a folder");
        let green = ResourceSpec::new("tea://green", "green");
        let whole = ServerBuilder::new("tea", "1")
            .title("Tea")
            .tool(PourTestTool)
            .prompt(BrewTestPrompt)
            .resources(StaticResourceSource::new("leaves").text(green, "two minutes"))
            .with_jobs_in(folder.path())
            .open(&config())
            .expect("a server");
        assert_eq!(whole.info.title, "Tea");
        assert!(whole.info.jobs && whole.info.resources && whole.info.prompts);
        let tools = whole.host.tools(&Caller::local()).tools;
        assert!(tools.iter().any(|tool| tool.spec().id.as_str() == "pour"));
        assert!(tools.iter().any(|tool| tool.spec().id.as_str() == "jobs.start"));
    }

    #[test]
    fn a_server_requires_authentication_if_the_settings_have_keys() {
        let info =
            |config: &Config| ServerBuilder::new("tea", "1").open(config).expect("a server").info;
        let mut keyed = config();
        let key = serde_json::json!({ "name": "ann", "sha256": "0".repeat(64) });
        keyed.keys.push(serde_json::from_value(key).expect("a key"));
        assert!(info(&keyed).requires_auth && !info(&config()).requires_auth);
    }

    #[test]
    fn two_tools_with_the_same_name_are_refused_at_start() {
        let twice =
            ServerBuilder::new("tea", "1").tool(PourTestTool).tool(PourTestTool).open(&config());
        assert!(twice.is_err_and(|why| why.to_string().contains("pour")));
    }

    #[test]
    fn a_server_without_tools_serves_its_prompts() {
        let books = ServerBuilder::new("tea", "1")
            .prompt(BrewTestPrompt)
            .open(&config())
            .expect("a server");
        assert!(books.info.prompts && books.host.tools(&Caller::local()).tools.is_empty());
    }

    #[test]
    fn only_the_dialects_in_the_settings_are_served() {
        let tea = ServerBuilder::new("tea", "1").open(&config()).expect("a server");
        let all = tea.dialects().len();
        let named = |dialects: &[&str], zyra_off| {
            let mut config = config();
            config.server.dialects = dialects.iter().map(|name| (*name).to_owned()).collect();
            config.contracts.zyra_off = zyra_off;
            let served = tea.dialects_over_http(&config).map_err(|why| format!("{why:#}"))?;
            Ok::<_, String>(served.iter().map(|dialect| dialect.name()).collect::<Vec<_>>())
        };
        assert_eq!(named(&["*"], false).map(|served| served.len()), Ok(all));
        assert_eq!(named(&["*"], true).map(|served| served.len()), Ok(all - 1));
        assert_eq!(named(&["zyra", "mcp"], false), Ok(vec!["mcp", "zyra"]));
        let why = named(&["mpc"], false).expect_err("an unknown dialect");
        assert!(why.contains("server.dialects") && why.contains("`mpc`"), "{why}");
    }

    #[test]
    fn the_name_of_a_client_is_refused_with_the_name_of_its_dialect() {
        let tea = ServerBuilder::new("tea", "1").open(&config()).expect("a server");
        for (name, dialect) in [("ragx", "envelope"), ("ancplua", "workstation")] {
            let why = tea.dialect(name).err().expect("an unknown dialect").to_string();
            assert!(why.ends_with(&format!("clients use `{dialect}`")), "{why}");
        }
    }

    #[test]
    fn the_refusal_of_an_unknown_dialect_lists_the_known_ones() {
        let tea = ServerBuilder::new("tea", "1").open(&config()).expect("a server");
        let why = tea.dialect("mpc").err().expect("an unknown dialect").to_string();
        assert!(why.contains("`mpc`") && why.contains("mcp"), "{why}");
    }
}
