//! A tool of an upstream, as an entry of the catalog.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolgate_contract::{
    Ahead, AnyTool, AsJob, BoxFuture, Ctx, Effects, Fault, Output, ToolError, ToolSpec,
};
use toolgate_dialects::mcp::upstream::{icons, meta, output};

use crate::carried::Driven;
use crate::listing::Manner;
use crate::names;
use crate::pins::Judged;
use crate::results::{Budget, Results};
use crate::upstream::{Asked, Lasting, Upstream};

/// Time within which a call that ends does not become a job.
const SOON: Duration = Duration::from_millis(150);
/// Longest wait for a call to become a task of the upstream.
const AS_TASK: Duration = Duration::from_secs(5);

/// A tool of an upstream.
pub(crate) struct RemoteTool {
    upstream: Arc<Lasting>,
    /// The upstream's own name for the tool.
    name: String,
    spec: ToolSpec,
    /// Entry of the tool list, and whether calls are refused.
    judged: Judged,
    /// Call properties of the upstream.
    manner: Manner,
    /// Size limits of results, and the store for the rest.
    budget: Budget,
    results: Results,
    /// True if calls may become tasks of the upstream.
    tasked: bool,
    /// Arguments that are repeated in headers, as header name and path.
    mirrored: Vec<(String, Vec<String>)>,
}

impl RemoteTool {
    /// Creates the tool from its entry in `tools/list`. Returns `None` if the entry is invalid.
    pub(crate) fn new(of: &Upstream, judged: Judged) -> Option<Self> {
        let entry = &judged.entry;
        let manner = of.listing().manner();
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
        let input = input.cloned().unwrap_or_else(|| json!({ "type": "object" }));
        let mut mirrored = Vec::new();
        gather(&input, &mut Vec::new(), &mut mirrored);
        let support = entry.pointer("/execution/taskSupport").and_then(Value::as_str);
        // Without a declaration, the upstream decides per call.
        let tasked = match support {
            Some("required" | "optional") => true,
            Some(_) => false,
            None => manner.tasks,
        };
        let job = match support {
            Some("required") => AsJob::Must,
            // A slow call becomes a job if the caller accepts jobs.
            _ if tasked || manner.in_session => AsJob::Rather,
            Some(_) | None => AsJob::May,
        };
        let id = names::tool(of.prefix(), &name);
        // Some servers write a missing schema as null.
        let shape = entry.get("outputSchema").filter(|shape| !shape.is_null());
        let shape = shape.cloned().map(Into::into);
        let (output_schema, unpromised) = match of.settings.promise_outputs {
            true => (shape, None),
            false => (None, shape),
        };
        let budget = Budget {
            text_bytes: of.settings.answer_bytes,
            media_bytes: of.settings.media_bytes,
            promised: output_schema.is_some(),
        };
        let spec = ToolSpec {
            idempotent: hint("idempotentHint").unwrap_or(false) || effects == Effects::Reads,
            deadline: of.settings.deadline_ms.map(Duration::from_millis),
            input_schema: input.into(),
            output_schema,
            unpromised,
            tags: of.tags(),
            ruled_as: of.ruled_as(&name),
            open_world: Some(hint("openWorldHint").unwrap_or(true)),
            icons: icons(entry),
            meta: meta(entry),
            job,
            among: Some(of.among()),
            ..ToolSpec::new(id, title, about, effects)
        };
        let upstream = of.lasting.clone();
        let results = of.results.clone();
        Some(Self { upstream, name, spec, judged, manner, budget, results, tasked, mirrored })
    }

    /// Returns true if the tool was made from `judged` and `manner`.
    pub(crate) fn is(&self, judged: &Judged, manner: Manner) -> bool {
        self.judged == *judged && self.manner == manner
    }

    /// Returns the arguments of `input` that are repeated in headers.
    fn said(&self, input: &Value) -> Vec<(String, String)> {
        let said = |(header, path): &(String, Vec<String>)| {
            let value = path.iter().try_fold(input, |value, name| value.get(name))?;
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((header.clone(), value))
        };
        self.mirrored.iter().filter_map(said).collect()
    }
}

/// Collects the properties of `schema` that have an `x-mcp-header`.
fn gather(schema: &Value, path: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        path.push(name.clone());
        if let Some(header) = property.get("x-mcp-header").and_then(Value::as_str) {
            found.push((header.to_owned(), path.clone()));
        }
        if path.len() < 32 {
            gather(property, path, found);
        }
        path.pop();
    }
}

impl AnyTool for RemoteTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn looks_before(&self) -> bool {
        self.spec.job != AsJob::May
    }

    /// Starts a call that may become a task of the upstream. Its first questions are asked before
    /// it becomes a job.
    fn before<'a>(
        &'a self,
        ctx: &'a Ctx,
        input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async move {
            let upstream = self.upstream().await?;
            if !ctx.as_job || ctx.ahead.is_begun() {
                return Ok(());
            }
            let asked = self.asked(ctx, input.clone());
            // Uses at most half of the time left before the deadline.
            let left = ctx.deadline.saturating_duration_since(Instant::now()) / 2;
            let within = left.min(if self.tasked { AS_TASK } else { SOON });
            ctx.ahead.put(upstream.begin_in_time(ctx, asked, within).await?);
            Ok(())
        })
    }

    fn is_done(&self, ahead: &Ahead) -> bool {
        ahead.is(Driven::has_result)
    }

    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let upstream = self.upstream().await?;
            let begun = match ctx.ahead.take::<Driven>() {
                Some(driven) => upstream.go_on(ctx, driven).await?,
                None => upstream.begin(ctx, self.asked(ctx, input)).await?,
            };
            let result = upstream.ended(ctx, begun).await?;
            output(&result).map_err(|why| {
                let message = format!("`{}` answered with no result: {why}", self.name);
                ToolError::new(Fault::Failed, message)
            })
        })
    }

    fn is_too_long(&self, output: &Output) -> bool {
        self.budget.is_exceeded_by(output)
    }

    fn given(&self, ctx: &Ctx, output: Output) -> Result<Output, ToolError> {
        self.results.cut(ctx, &self.spec.id, output, self.budget)
    }
}

impl RemoteTool {
    /// Returns the upstream's own name for the tool.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the reason why calls are refused, if they are.
    pub(crate) fn withheld(&self) -> Option<&str> {
        self.judged.withheld.as_deref()
    }

    /// Returns the upstream, or an error if the tool is withheld.
    async fn upstream(&self) -> Result<Arc<Upstream>, ToolError> {
        let gone = || ToolError::new(Fault::Unavailable, "the upstream is not served any more");
        let upstream = self.upstream.upstream().ok_or_else(gone)?;
        if self.judged.withheld.is_none() {
            return Ok(upstream);
        }
        // The change may be approved or undone by now. Then the next call reaches the tool,
        // validated against its current schema.
        upstream.look().await;
        let why = upstream.withholds(&self.name).unwrap_or_else(|| {
            format!("`{}` was held back and is not any more: call it again", self.name)
        });
        Err(ToolError::new(Fault::Unavailable, why))
    }

    fn asked(&self, ctx: &Ctx, input: Value) -> Asked {
        let mirrored = self.said(&input);
        let params = Map::from_iter([
            ("name".to_owned(), json!(self.name)),
            ("arguments".to_owned(), input),
        ]);
        let as_task = ctx.as_job && self.tasked;
        Asked { mirrored, as_task, ..Asked::of("tools/call", &self.name, params) }
    }
}
