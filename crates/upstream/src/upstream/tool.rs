//! A tool of an upstream, as an entry of the catalog.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolgate_contract::{
    AnyTool, ContentBlock, Effects, JobSupport, PreparedCallValue, ToolContext, ToolError,
    ToolErrorKind, ToolFuture, ToolOutput, ToolSpec,
};
use toolgate_dialects::mcp::upstream::{parse_icons, parse_meta, parse_output};

use crate::listing::UpstreamCallProperties;
use crate::names;
use crate::pins::ServedUpstreamTool;
use crate::results::{ResultSizeBudget, TruncatedToolResult, UpstreamResultStore};
use crate::settings::UpstreamLimits;
use crate::upstream::call_driver::UpstreamCallProgress;
use crate::upstream::schema_repair::{repair_input_schema, repair_schema};
use crate::upstream::{Upstream, UpstreamCallRequest, UpstreamPersistentState};

/// Time within which a call of an upstream's tool must end so that it does not become a job.
const QUICK_CALL: Duration = Duration::from_millis(150);
/// Longest wait for a started call to become a task of the upstream.
const TASK_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of bytes of text in a result of a tool that is called through tool search. The
/// usual limit of 256 KiB would cost as many tokens as fifty sessions with tool search.
const FOUND_TEXT_BYTES: usize = 16 << 10;

/// Tool that an upstream offers.
pub(crate) struct UpstreamTool {
    upstream: Arc<UpstreamPersistentState>,
    /// The upstream's own name for the tool.
    name: String,
    spec: ToolSpec,
    /// Entry of the tool list, and the reason if calls of the tool are refused.
    served: ServedUpstreamTool,
    /// Properties of the upstream that apply to the calls of all its tools.
    call_properties: UpstreamCallProperties,
    /// Size limits of the tool's results.
    budget: ResultSizeBudget,
    results: UpstreamResultStore,
    /// True if calls of the tool may become tasks of the upstream.
    may_become_task: bool,
    /// Arguments that are repeated in HTTP headers, as header name and path of the argument.
    header_arguments: Vec<(String, Vec<String>)>,
}

impl UpstreamTool {
    /// Creates the tool from its entry in `tools/list`. Returns `None` if the entry is invalid.
    pub(crate) fn new(upstream: &Upstream, served: ServedUpstreamTool) -> Option<Self> {
        let entry = &served.entry;
        let call_properties = upstream.listing().call_properties();
        let text = |at: &str| entry.pointer(at).and_then(Value::as_str).map(str::to_owned);
        let name = text("/name").filter(|name| !name.is_empty())?;
        let title = text("/title").or(text("/annotations/title")).unwrap_or_else(|| name.clone());
        let about = text("/description").unwrap_or_default();
        let hint = |name: &str| entry["annotations"][name].as_bool();
        // The hints come from the upstream. A missing one is taken as the riskiest.
        let effects = match (hint("readOnlyHint"), hint("destructiveHint")) {
            (Some(true), _) => Effects::Reads,
            (_, Some(false)) => Effects::Adds,
            (Some(false) | None, Some(true) | None) => Effects::Changes,
        };
        let input = entry.get("inputSchema").filter(|schema| schema.is_object());
        let mut input = input.cloned().unwrap_or_else(|| json!({ "type": "object" }));
        upstream.log_repairs(&name, "input", &repair_input_schema(&mut input));
        let mut header_arguments = Vec::new();
        collect_header_arguments(&input, &mut Vec::new(), &mut header_arguments);
        let support = entry.pointer("/execution/taskSupport").and_then(Value::as_str);
        // Without a declaration, the upstream decides per call.
        let may_become_task = match support {
            Some("required" | "optional") => true,
            Some(_) => false,
            None => call_properties.tasks,
        };
        let job = match support {
            Some("required") => JobSupport::Required,
            // A slow call becomes a job if the caller accepts jobs.
            _ if may_become_task || call_properties.in_session => JobSupport::Preferred,
            Some(_) | None => JobSupport::Optional,
        };
        let id = names::tool_id(upstream.prefix(), &name);
        // Some servers write a missing schema as null.
        let schema = entry.get("outputSchema").filter(|schema| !schema.is_null());
        let output_schema = schema.cloned().map(|mut schema| {
            upstream.log_repairs(&name, "output", &repair_schema(&mut schema));
            schema.into()
        });
        let UpstreamLimits { text_bytes, media_bytes, idle: _ } = upstream.settings.limits;
        let budget = ResultSizeBudget {
            text_bytes,
            media_bytes,
            is_schema_promised: output_schema.is_some(),
        };
        let spec = ToolSpec {
            idempotent: hint("idempotentHint").unwrap_or(false) || effects == Effects::Reads,
            deadline: upstream.settings.deadline_ms.map(Duration::from_millis),
            input_schema: input.into(),
            output_schema,
            tags: upstream.tags(),
            ruled_as: upstream.ruled_as(&name),
            open_world: Some(hint("openWorldHint").unwrap_or(true)),
            icons: parse_icons(entry),
            meta: parse_meta(entry),
            job,
            group: Some(upstream.limit_group()),
            ..ToolSpec::new(id, title, about, effects)
        };
        Some(Self {
            upstream: upstream.lasting.clone(),
            name,
            spec,
            served,
            call_properties,
            budget,
            results: upstream.results.clone(),
            may_become_task,
            header_arguments,
        })
    }

    /// Returns true if the tool was created from `served` and `call_properties`.
    pub(crate) fn is_made_from(
        &self,
        served: &ServedUpstreamTool,
        call_properties: UpstreamCallProperties,
    ) -> bool {
        self.served == *served && self.call_properties == call_properties
    }

    /// Returns the arguments in `input` that are repeated in HTTP headers.
    fn header_params(&self, input: &Value) -> Vec<(String, String)> {
        let header_param = |(header, path): &(String, Vec<String>)| {
            let value = path.iter().try_fold(input, |value, name| value.get(name))?;
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((header.clone(), value))
        };
        self.header_arguments.iter().filter_map(header_param).collect()
    }
}

impl Upstream {
    /// Logs the repairs of a schema of the tool `name`.
    fn log_repairs(&self, name: &str, side: &str, notes: &[String]) {
        if !notes.is_empty() {
            tracing::warn!(
                "the {side} schema of `{name}` of the upstream `{}` was repaired: {}",
                self.name,
                notes.join("; ")
            );
        }
    }
}

/// Appends to `found` the properties of `schema` that are marked with `x-mcp-header`, which makes
/// clients repeat them in HTTP headers. `path` is the path of `schema` in the tool's schema.
fn collect_header_arguments(
    schema: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<(String, Vec<String>)>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        if let Some(header) = property.get("x-mcp-header").and_then(Value::as_str) {
            found.push((header.to_owned(), path.clone()));
        }
        if path.len() < 32 {
            collect_header_arguments(property, path, found);
        }
        path.pop();
    }
}

impl AnyTool for UpstreamTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_prepare(&self) -> bool {
        self.spec.job != JobSupport::Optional
    }

    /// Starts a call that may become a task of the upstream. The upstream's first questions are
    /// asked before the call becomes a job.
    fn prepare<'a>(&'a self, ctx: &'a ToolContext, input: &'a Value) -> ToolFuture<'a, ()> {
        Box::pin(async move {
            let upstream = self.upstream().await?;
            if !ctx.as_job || ctx.started_work.has_work() {
                return Ok(());
            }
            let request = self.request(ctx, input.clone());
            // Uses at most half of the time left before the deadline.
            let left = ctx.deadline.saturating_duration_since(Instant::now()) / 2;
            let within = left.min(if self.may_become_task { TASK_WAIT } else { QUICK_CALL });
            ctx.started_work.put(upstream.start_call_for(ctx, request, within).await?);
            Ok(())
        })
    }

    fn is_done(&self, started: &PreparedCallValue) -> bool {
        started.matches(UpstreamCallProgress::has_result)
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let upstream = self.upstream().await?;
            let begun = match ctx.started_work.take::<UpstreamCallProgress>() {
                Some(driven) => upstream.continue_call(ctx, driven).await?,
                None => upstream.start_call(ctx, self.request(ctx, input)).await?,
            };
            let result = upstream.wait_for_result(ctx, begun).await?;
            let output = parse_output(&result).map_err(|why| {
                let message = format!("`{}` returned an invalid result: {why}", self.name);
                ToolError::new(ToolErrorKind::Failed, message)
            })?;
            Ok(with_refused_hosts(output, &ctx.sandbox_report.refused_hosts()))
        })
    }

    fn needs_caller_token(&self) -> bool {
        self.upstream.upstream().is_some_and(|upstream| upstream.exchanges_tokens())
    }

    fn is_too_long(&self, ctx: &ToolContext, output: &ToolOutput) -> bool {
        self.budget_of(ctx).is_exceeded_by(output)
    }

    fn shorten<'a>(
        &'a self,
        ctx: &'a ToolContext,
        output: ToolOutput,
    ) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let budget = self.budget_of(ctx);
            let TruncatedToolResult { output, stored } =
                self.results.cut(ctx, &self.spec.id, output, budget)?;
            // The caller may read the stored parts at another server of the fleet at once.
            self.results.share(&ctx.caller, stored).await;
            Ok(output)
        })
    }
}

/// Adds a text with the hosts that were `refused` to the upstream's program to `output`, if there
/// are any.
fn with_refused_hosts(mut output: ToolOutput, refused: &[String]) -> ToolOutput {
    if !refused.is_empty() {
        let lines = refused.iter().map(|line| format!("refused host {line}"));
        let text = lines.collect::<Vec<_>>().join("\n");
        output.content.push(ContentBlock::text(text));
    }
    output
}

impl UpstreamTool {
    /// Returns the size limits of the result of a call. A client that found the tool by a search
    /// knows no output schema. Its results are shorter, so that the context of its model stays
    /// short.
    fn budget_of(&self, ctx: &ToolContext) -> ResultSizeBudget {
        match ctx.via {
            Some(_) => ResultSizeBudget {
                text_bytes: self.budget.text_bytes.min(FOUND_TEXT_BYTES),
                is_schema_promised: false,
                ..self.budget
            },
            None => self.budget,
        }
    }

    /// Returns the upstream's own name for this tool.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the entry of the tool list, and the reason why calls of the tool are refused, if
    /// they are.
    pub(crate) fn served(&self) -> &ServedUpstreamTool {
        &self.served
    }

    /// Returns the reason why calls of the tool are refused, if they are.
    pub(crate) fn withheld(&self) -> Option<&str> {
        self.served.withheld.as_deref()
    }

    /// Returns the upstream, or an error if the tool is withheld.
    async fn upstream(&self) -> Result<Arc<Upstream>, ToolError> {
        let gone =
            || ToolError::new(ToolErrorKind::Unavailable, "the upstream is no longer served");
        let upstream = self.upstream.upstream().ok_or_else(gone)?;
        if !upstream.is_listing_known() {
            // Boxed: only calls after a change of the settings wait here.
            Box::pin(self.wait_until_listed(&upstream)).await?;
        }
        if self.served.withheld.is_none() {
            return Ok(upstream);
        }
        // The change may be approved or undone by now. Then the next call reaches the tool,
        // validated against its current schema.
        upstream.refresh_now().await;
        let why = upstream.withheld_reason(&self.name).unwrap_or_else(|| {
            format!("`{}` was unavailable and is available again: call it again", self.name)
        });
        Err(ToolError::new(ToolErrorKind::Unavailable, why))
    }

    /// Waits until `upstream`, which replaced the upstream that listed this tool, has listed its
    /// own tools. Returns an error if the new definition of the tool differs, because the call was
    /// validated and allowed for the old one.
    async fn wait_until_listed(&self, upstream: &Upstream) -> Result<(), ToolError> {
        upstream.wait_listed().await;
        upstream.connection().await?;
        if upstream.offers(&self.served) {
            return Ok(());
        }
        let message = format!(
            "`{}` of the upstream `{}` changed with the settings: list the tools again",
            self.name, upstream.name
        );
        Err(ToolError::new(ToolErrorKind::Unavailable, message))
    }

    fn request(&self, ctx: &ToolContext, input: Value) -> UpstreamCallRequest {
        let header_params = self.header_params(&input);
        let params = Map::from_iter([
            ("name".to_owned(), json!(self.name)),
            ("arguments".to_owned(), input),
        ]);
        let as_task = ctx.as_job && self.may_become_task;
        UpstreamCallRequest {
            header_params,
            as_task,
            ..UpstreamCallRequest::new("tools/call", &self.name, params)
        }
    }
}
