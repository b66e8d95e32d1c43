//! Benchmark of one request in memory, from its bytes to the bytes of its answer: a dialect parses
//! the request, the host checks policy and limits and runs the tool, and the dialect encodes the
//! answer. The benchmark has no transport, and its tool only echoes, so that it measures only
//! toolgate's own cost.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use toolgate_contract::{
    AnyTool, BoxFuture, Caller, Effects, MessageFrame, Reply, ReplyBody, ResultText, Tool,
    ToolContext, ToolError, ToolId, ToolOutput as ErasedOutput, ToolResultFormat, ToolSpec,
    erase_tool,
};
use toolgate_dialects::mcp::McpDialect;
use toolgate_dialects::{ClientConversation, Dialect, ParsedFrame, ServerInfo};
use toolgate_host::{
    AuditDestination, AuditFileSettings, AuditLog, CallLimits, CallRateLimit, Catalog, Gate,
    GateSettings, Host, IncomingRequest, PolicyEffect, PolicyRule, ToolPolicy,
};

/// Request that the benchmark sends through the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateBenchRequest {
    /// Call of a tool in a session of the MCP revision 2025-11-25.
    Call,
    /// Call of a tool in the stateless MCP revision 2026-07-28, without a session.
    Stateless,
    /// Request for a list of fifty tools.
    List,
}

impl GateBenchRequest {
    /// All requests that the benchmark measures.
    pub const ALL: [Self; 3] = [Self::Call, Self::Stateless, Self::List];

    /// Returns the name of the request on the command line and in the file of recorded counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Stateless => "stateless",
            Self::List => "list",
        }
    }

    fn request(self) -> &'static str {
        match self {
            Self::Call => {
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"bench_echo","arguments":{"text":"hello"}}}"#
            }
            Self::Stateless => {
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"0"}},"name":"bench_echo","arguments":{"text":"hello"}}}"#
            }
            Self::List => r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#,
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Call | Self::Stateless => r#""structuredContent":{"text":"hello"}"#,
            Self::List => "\"name\":\"bench_49\"",
        }
    }
}

/// Host with policy rules, rate limits and an audit log, and one client with its request.
pub struct GateBenchHost {
    runtime: Runtime,
    host: Host,
    conversation: Box<dyn ClientConversation>,
    request: Bytes,
    expected: &'static str,
}

impl GateBenchHost {
    /// Creates a host and prepares the request `case`.
    ///
    /// # Panics
    ///
    /// Panics if the settings in this file are invalid.
    pub fn new(case: GateBenchRequest) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let host = Host::new(gate(), None);
        let mut conversation =
            McpDialect::new(server_info().into()).start_conversation(&Caller::local());
        if case != GateBenchRequest::Stateless {
            let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
            let read = conversation.read(&MessageFrame::from_line(hello.as_bytes().to_vec()));
            assert!(matches!(read, ParsedFrame::OpenSession(_)), "the session is open");
        }
        let request = Bytes::from_static(case.request().as_bytes());
        Self { runtime, host, conversation, request, expected: case.expected() }
    }

    /// Sends the prepared request once and returns the answer.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not a request, or if there is no answer.
    pub fn request(&mut self) -> Bytes {
        let ParsedFrame::Request(read) =
            self.conversation.read(&MessageFrame::from_line(self.request.clone()))
        else {
            panic!("this is not a request");
        };
        let incoming = IncomingRequest {
            metadata: read.metadata,
            time_limit: read.time_limit,
            ..IncomingRequest::without_client(read.request, Caller::local(), "mcp")
        };
        let outcome = self.runtime.block_on(self.host.answer(incoming));
        let Some(Reply { body: ReplyBody::Json(answer), .. }) = read.encoder.encode_reply(outcome)
        else {
            panic!("there is no answer");
        };
        answer
    }

    /// Sends the prepared request once and checks the answer.
    ///
    /// # Panics
    ///
    /// Panics if the answer is wrong.
    pub fn check(&mut self) {
        let answer = self.request();
        let answer = str::from_utf8(&answer).expect("the answer is UTF-8");
        assert!(answer.contains(self.expected), "a wrong answer: {answer}");
    }
}

/// Tool for benchmarks that returns its input text.
struct EchoBenchTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EchoBenchInput {
    /// The text to return.
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct EchoBenchOutput {
    /// The text of the input.
    text: String,
}

impl Tool for EchoBenchTool {
    const NAME: &'static str = "bench.echo";
    const TITLE: &'static str = "Echo";
    const DESCRIPTION: &'static str = "Return the text.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = EchoBenchInput;
    type Output = EchoBenchOutput;

    async fn run(
        &self,
        _ctx: &ToolContext,
        input: EchoBenchInput,
    ) -> Result<EchoBenchOutput, ToolError> {
        Ok(EchoBenchOutput { text: input.text })
    }

    fn result_text(output: &EchoBenchOutput) -> ResultText {
        ResultText::from_body(&output.text)
    }
}

/// Echo tool under another name, so that a list of tools can have fifty entries.
struct RenamedEchoTool {
    spec: ToolSpec,
    echo: Arc<dyn AnyTool>,
}

impl AnyTool for RenamedEchoTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn run<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: Value,
    ) -> BoxFuture<'a, Result<ErasedOutput, ToolError>> {
        self.echo.run(ctx, input)
    }
}

fn gate() -> Gate {
    let echo = erase_tool(EchoBenchTool);
    let mut tools = vec![echo.clone()];
    for number in 1..50 {
        let id = ToolId::new(&format!("bench.{number}")).expect("an id");
        let spec = ToolSpec { id, ..echo.spec().clone() };
        tools.push(Arc::new(RenamedEchoTool { spec, echo: echo.clone() }));
    }
    let rules = [
        rule("no-infra", PolicyEffect::Deny, Some(r#"input.text.startsWith("infra/")"#)),
        rule("nobody-else", PolicyEffect::Deny, Some(r#"caller.name != "local""#)),
        rule("reads", PolicyEffect::Allow, None),
    ];
    let policy =
        ToolPolicy::new(&["*".to_owned()], &[], Effects::Runs).expect("the rules are valid");
    let policy = policy.with_rules(&rules, PolicyEffect::Allow).expect("the rules are valid");
    let unlimited = NonZeroU32::new(1_000_000_000).expect("some");
    let rate =
        CallRateLimit { tools: "*".to_owned(), calls: unlimited, per: Duration::from_secs(1) };
    let limits = CallLimits::new(64, 8, 64, Duration::from_secs(1)).with_rates(&[rate]);
    let limits = limits.expect("sound rates");
    let audit_file = AuditFileSettings::with_defaults("/dev/null".into(), "/nowhere".as_ref());
    let audit = AuditLog::open(&AuditDestination::File(audit_file), false).expect("a log");
    let catalog = Catalog::new(tools).expect("sound tools");
    Gate::new(catalog, policy, limits, audit, GateSettings::default())
}

fn rule(name: &str, effect: PolicyEffect, when: Option<&str>) -> PolicyRule {
    PolicyRule {
        name: name.to_owned(),
        effect,
        callers: Vec::new(),
        roles: Vec::new(),
        tools: Vec::new(),
        effects: Vec::new(),
        when: when.map(str::to_owned),
        message: None,
    }
}

fn server_info() -> ServerInfo {
    ServerInfo {
        name: "bench".to_owned(),
        title: "Bench".to_owned(),
        version: "0".to_owned(),
        description: String::new(),
        instructions: String::new().into(),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_gets_the_expected_answer() {
        for case in GateBenchRequest::ALL {
            GateBenchHost::new(case).check();
        }
    }
}
