//! Tests of the host: its answers to the requests of a dialect, and its audit records.
#![allow(clippy::disallowed_methods, reason = "a test looks at the files it made")]

mod rounds;
mod library;
mod policy;
mod jobs;
mod jobs_in_database;
mod ahead;
mod caller_tokens;
mod budgets;
mod offered;
mod tool_search;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{
    AnyTool, CallError, Caller, ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions,
    Effects, ElicitationAnswer, EndedJobCancelReply, HostAnswer, HostRequest, JobOptions,
    JobSnapshot, OutputStreamKind, ProducedFile, QuestionAsker, QuestionSupport, Tool, ToolContext,
    ToolError, UnstructuredResult, erase_tool,
};

use crate::{
    AuditDestination, AuditFileSettings, AuditLog, CallLimits, Catalog, ContentLibrary, Gate,
    GateSettings, Host, IncomingRequest, JobSettings, JobStoreKind, JobsToolHandle, PolicyEffect,
    PolicyRule, ToolPolicy, job_resources,
};

/// Host for tests, which stores its files in a temporary folder.
struct TestHost {
    host: Host,
    folder: Arc<TempDir>,
}

/// Settings, tools and content from which a [`TestHost`] is built.
struct TestHostParts {
    folder: Arc<TempDir>,
    tools: Vec<Arc<dyn AnyTool>>,
    library: ContentLibrary,
    deny: Vec<String>,
    confirm: Vec<String>,
    rules: Vec<PolicyRule>,
    settings: GateSettings,
    limits: CallLimits,
    jobs: JobSettings,
    handle: JobsToolHandle,
}

impl TestHostParts {
    fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().expect("a folder")),
            tools: vec![
                erase_tool(QuestionTool),
                erase_tool(PrintingTool),
                erase_tool(PreparedWorkTestTool),
                erase_tool(HeaderParamTool),
            ],
            library: ContentLibrary::default(),
            deny: Vec::new(),
            confirm: Vec::new(),
            rules: Vec::new(),
            settings: GateSettings {
                cancel_grace: Duration::from_millis(10),
                ..GateSettings::default()
            },
            limits: CallLimits::new(8, 8, 8, Duration::from_secs(1)),
            jobs: JobSettings {
                folder: PathBuf::new(),
                place: JobStoreKind::Folder,
                running_max: 4,
                running_per_caller: 4,
                queued_max: 16,
                queued_per_caller: 16,
                keep: Duration::from_secs(3600),
                keep_max: Duration::from_secs(3600),
                ended_max: 100,
                output_bytes_max: 1 << 20,
                files_bytes_max: 64 << 20,
                drain: Duration::from_millis(100),
                mark: 1,
                end_leftovers: Arc::new(|_| {}),
                report_alive: Arc::new(|_| {}),
            },
            handle: JobsToolHandle::default(),
        }
    }

    fn build(self) -> TestHost {
        let Self { folder, tools, mut library, deny, confirm, rules, settings, limits, .. } = self;
        let (jobs, handle) = (self.jobs, self.handle);
        let policy = ToolPolicy::new(&["*".to_owned()], &deny, Effects::Runs).expect("sound rules");
        let policy = policy.with_confirm(&confirm).expect("sound rules");
        let policy = policy.with_rules(&rules, PolicyEffect::Allow).expect("sound rules");
        let log = AuditDestination::File(AuditFileSettings::with_defaults(
            folder.path().join("audit.jsonl"),
            folder.path(),
        ));
        let audit = AuditLog::open(&log, false).expect("a log");
        library.resources.extend(audit.resources());
        library.resources.push(job_resources(&handle));
        let catalog = Catalog::new(tools).expect("sound tools");
        let gate = Gate::new(catalog, policy, limits, audit, settings).with_library(library);
        let own_folder = || folder.path().join("jobs");
        let jobs = match jobs.folder.as_os_str().is_empty() {
            true => JobSettings { folder: own_folder(), ..jobs },
            false => jobs,
        };
        TestHost { host: Host::new(gate, Some(jobs)).with_job_tools(&handle), folder }
    }
}

impl TestHost {
    async fn ask(&self, request: HostRequest) -> Result<HostAnswer, CallError> {
        self.host.answer(asked(request)).await
    }

    /// Returns one line with tool and outcome for each audit record.
    fn records(&self) -> Vec<String> {
        self.host.flush();
        let log = std::fs::read_to_string(self.folder.path().join("audit.jsonl")).expect("a log");
        let line = |line: &str| {
            let record: Value = serde_json::from_str(line).expect("JSON");
            let field = |name: &str| record[name].as_str().expect("text").to_owned();
            format!("{} {}", field("tool"), field("outcome"))
        };
        log.lines().map(line).collect()
    }

    /// Starts `tool` as a job of a caller that can answer questions.
    async fn start(&self, tool: &str, input: Value) -> JobSnapshot {
        let tool = tool.to_owned();
        let terms = JobOptions::default();
        let request = HostRequest::StartJob { tool, input, terms };
        let asker = QuestionAsker::on_repeat(form_alone(), ClientAnswers::new());
        job(self.host.answer(IncomingRequest { asker, ..asked(request) }).await)
    }

    /// Waits until `wanted` is true for the job, and returns the job. Checks the job after each
    /// event.
    async fn wait_for(&self, id: &str, wanted: impl Fn(&JobSnapshot) -> bool) -> JobSnapshot {
        let jobs = self.host.jobs().expect("jobs");
        let (_, mut watch) = jobs.watch(None, id, 0).await.expect("a watch");
        let found = async {
            loop {
                let job = jobs.get(None, id).await.expect("the job");
                if wanted(&job) {
                    return job;
                }
                watch.next().await.expect("the job has not ended");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.expect("it happens in time")
    }

    async fn ended(&self, id: &str) -> JobSnapshot {
        self.wait_for(id, |job| job.state.is_terminal()).await
    }
}

fn ada() -> Caller {
    Caller::with_key("ada")
}

fn asked(request: HostRequest) -> IncomingRequest {
    IncomingRequest::without_client(request, ada(), "test")
}

fn call(tool: &str, input: Value) -> HostRequest {
    HostRequest::CallTool { tool: tool.to_owned(), input }
}

fn read(uri: &str) -> HostRequest {
    HostRequest::ReadResource { uri: uri.to_owned() }
}

fn cancel_request(id: &str) -> HostRequest {
    HostRequest::CancelJob { id: id.to_owned(), if_ended: EndedJobCancelReply::Refusal }
}

fn job(answer: Result<HostAnswer, CallError>) -> JobSnapshot {
    match answer {
        Ok(HostAnswer::Job(job)) => *job,
        Ok(_) => panic!("the answer is of another kind"),
        Err(err) => panic!("{err}"),
    }
}

/// Returns the text of the tool output in `answer`.
fn text(answer: Result<HostAnswer, CallError>) -> String {
    match answer {
        Ok(HostAnswer::Output(output)) => output.content[0].as_text(),
        Ok(_) => panic!("the answer is of another kind"),
        Err(err) => panic!("{err}"),
    }
}

fn form_alone() -> QuestionSupport {
    QuestionSupport { form: true, ..QuestionSupport::default() }
}

fn accepted(value: &str) -> ClientAnswer {
    let content = json!({ "v": value });
    ClientAnswer::Choice(ElicitationAnswer::Accepted(
        content.as_object().expect("an object").clone(),
    ))
}

/// Returns a client answer that accepts a confirmation and has no content.
fn agreed() -> ClientAnswer {
    ClientAnswer::Choice(ElicitationAnswer::Accepted(serde_json::Map::new()))
}

fn given<const N: usize>(answers: [(&str, ClientAnswer); N]) -> ClientAnswers {
    answers.into_iter().map(|(key, answer)| (key.to_owned(), answer)).collect()
}

/// Tool that asks the user several rounds of questions. It asks all questions of a round at once.
struct QuestionTool;

#[derive(Deserialize, JsonSchema)]
struct QuestionToolInput {
    rounds: Vec<Vec<String>>,
}

impl Tool for QuestionTool {
    const NAME: &'static str = "t.asks";
    const TITLE: &'static str = "Asks";
    const DESCRIPTION: &'static str = "Asks questions and returns the answers.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = QuestionToolInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let mut answers = Vec::new();
        for keys in input.rounds {
            let form = |key: String| {
                let schema = json!({
                    "type": "object", "properties": { "v": { "type": "string" } }, "required": ["v"],
                });
                (key.clone(), ClientQuestion::Form { message: key, schema })
            };
            let given =
                ctx.asker.ask(keys.into_iter().map(form).collect::<ClientQuestions>()).await?;
            answers.extend(given.into_iter().map(|(key, answer)| match answer {
                ClientAnswer::Choice(ElicitationAnswer::Accepted(content)) => {
                    format!("{key}={}", content["v"])
                }
                other => format!("{key}: {other:?}"),
            }));
        }
        Ok(UnstructuredResult::text(answers.join(" ")))
    }
}

/// A tool that prints, produces files and, on request, asks a question before it ends.
struct PrintingTool;

#[derive(Deserialize, JsonSchema)]
struct PrintingToolInput {
    text: String,
    times: usize,
    #[serde(default)]
    waits: bool,
}

impl Tool for PrintingTool {
    const NAME: &'static str = "t.prints";
    const TITLE: &'static str = "Prints";
    const DESCRIPTION: &'static str = "Prints.";
    const EFFECTS: Effects = Effects::Runs;
    type Input = PrintingToolInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        for _ in 0..input.times {
            ctx.send_output(OutputStreamKind::Stdout, input.text.clone());
        }
        for (path, bytes) in [("out/a plot.png", &b"\x89PNG\0"[..]), ("notes.txt", b"done")] {
            let mut file = tempfile::tempfile().expect("a file");
            std::io::Write::write_all(&mut file, bytes).expect("it is written");
            ctx.report_file(ProducedFile { path: path.to_owned(), handle: Arc::new(file) });
        }
        if input.waits {
            ctx.ask_form("go", "Go on?", json!({ "type": "object" })).await?;
            ctx.send_output(OutputStreamKind::Stdout, "after".to_owned());
        }
        Ok(UnstructuredResult::text("printed"))
    }
}

/// Tool that already starts the requested work in the check before the call.
struct PreparedWorkTestTool;

#[derive(Deserialize, JsonSchema)]
struct PreparingToolInput {
    how: String,
}

impl Tool for PreparedWorkTestTool {
    const NAME: &'static str = "t.looks";
    const TITLE: &'static str = "Looks";
    const DESCRIPTION: &'static str = "Checks the call before it begins.";
    const EFFECTS: Effects = Effects::Reads;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(5));
    const HAS_PREPARE: bool = true;
    type Input = PreparingToolInput;
    type Output = UnstructuredResult;

    async fn prepare(
        &self,
        ctx: &ToolContext,
        input: &PreparingToolInput,
    ) -> Result<(), ToolError> {
        match input.how.as_str() {
            "panics" => panic!("as requested"),
            "hangs" => std::future::pending().await,
            "asks" => ctx.ask_form("sure", "Sure?", json!({ "type": "object" })).await.map(drop),
            _ => Ok(()),
        }
    }

    async fn run(
        &self,
        _ctx: &ToolContext,
        _input: PreparingToolInput,
    ) -> Result<UnstructuredResult, ToolError> {
        Ok(UnstructuredResult::text("done"))
    }
}

/// A tool with an argument that clients repeat in a header.
struct HeaderParamTool;

#[derive(Deserialize, JsonSchema)]
struct HeaderParamToolInput {
    #[schemars(extend("x-mcp-header" = "Region"))]
    region: String,
}

impl Tool for HeaderParamTool {
    const NAME: &'static str = "t.mirrors";
    const TITLE: &'static str = "Mirrors";
    const DESCRIPTION: &'static str = "Has an argument that is repeated in a header.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = HeaderParamToolInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult::text(input.region))
    }
}

#[tokio::test]
async fn the_future_of_a_call_is_small() {
    let test_host = TestHostParts::new().build();
    let request = HostRequest::CallTool { tool: "t.looks".to_owned(), input: Value::Null };
    let answering =
        test_host.host.answer(IncomingRequest::without_client(request, Caller::local(), "mcp"));
    // The whole future is moved for each call.
    let bytes = size_of_val(&answering);
    assert!(bytes <= 4096, "{bytes} bytes");
}
