//! Requests that call a tool: the run of a tool, and the start of a job.

use std::future::ready;
use std::sync::Arc;

use serde_json::Value;
use toolgate_contract::{
    BoxFuture, CallError, JobSupport, ToolCall, ToolContext, ToolFuture, ToolOutput, ToolRunStatus,
};

use crate::Gate;
use crate::audit::OpenAuditRecord;
use crate::catalog::CatalogToolEntry;
use crate::limits::CallSlot;
use crate::pipeline::call_observer::CallTarget;
use crate::pipeline::call_trace::CallTrace;
use crate::pipeline::gated_request::{
    GatedRequest, GatedRequestRules, RecordedRequest, RequestAdmissionKind,
};
use crate::pipeline::recording::{keep_arguments, note_tool_subject};
use crate::pipeline::{CallContext, run_with_deadline, validate};
use crate::policy::PolicyRequestKind;
use crate::secrets::CallSecrets;

/// The tool that a call names, as the call's audit record, observer and checks see it.
#[derive(Default)]
pub(crate) struct CalledTool {
    /// The tool with the call's name, even if it is hidden from the caller.
    pub(crate) named: Option<Arc<CatalogToolEntry>>,
    /// True if the caller may see the tool.
    pub(crate) is_visible: bool,
}

impl CalledTool {
    /// Returns the tool, if the caller may see it.
    pub(crate) fn visible(&self) -> Option<&Arc<CatalogToolEntry>> {
        self.named.as_ref().filter(|_| self.is_visible)
    }

    /// Returns the target of the call for its observer.
    pub(super) fn target(&self) -> CallTarget<'_> {
        self.visible().map_or(CallTarget::UnknownTool, |entry| CallTarget::Tool(&entry.spec().id))
    }
}

/// A request to run the tool of a call. The run of a job already has a slot.
///
/// The slot is boxed, because only jobs have one. Otherwise every call would reserve space for a
/// slot.
pub(super) struct ToolRunRequest {
    slot: Option<Box<CallSlot>>,
    /// The tool that the request has looked up.
    called: CalledTool,
}

impl ToolRunRequest {
    pub(super) fn new(slot: Option<CallSlot>) -> Self {
        Self { slot: slot.map(Box::new), called: CalledTool::default() }
    }
}

impl GatedRequest for ToolRunRequest {
    type Target = Arc<CatalogToolEntry>;
    type Output = ToolOutput;

    fn resolve(
        &mut self,
        gate: &Gate,
        call: &ToolCall,
    ) -> impl Future<Output = Result<Self::Target, CallError>> + Send {
        ready(gate.find_called(call, &self.called))
    }

    async fn validate(
        &mut self,
        entry: &Self::Target,
        call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        if entry.spec().job == JobSupport::Required && call.job.is_none() {
            return Err(CallError::NeedsJob { tool: entry.spec().id.to_string() });
        }
        let input = call.input.take();
        validated_input(entry, call, input).await
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, entry: &'t Self::Target) -> GatedRequestRules<'t> {
        let limit = match self.slot.take() {
            Some(slot) => RequestAdmissionKind::JobRun(slot),
            None => RequestAdmissionKind::Call(entry.spec()),
        };
        tool_rules(entry, limit)
    }

    async fn prepare(
        &self,
        gate: &Gate,
        entry: &Self::Target,
        call: &ToolCall,
        input: &Value,
    ) -> Result<(), CallError> {
        if !entry.tool().has_prepare() {
            return Ok(());
        }
        // Boxed: few tools do this, and every call would reserve space for it.
        let preparing = async {
            let context = CallContext::new(gate, entry.spec().deadline, call)
                .with_output_access(gate, entry.spec());
            run_with_deadline(gate, &context, entry.tool().prepare(&context.ctx, input)).await
        };
        Box::pin(preparing).await
    }

    fn run<'t>(
        &'t mut self,
        entry: &'t Self::Target,
        ctx: &'t ToolContext,
        input: Value,
    ) -> ToolFuture<'t, ToolOutput> {
        entry.tool().run(ctx, input)
    }

    async fn check_output(
        &self,
        gate: &Gate,
        entry: &Self::Target,
        ctx: &ToolContext,
        mut output: ToolOutput,
    ) -> Result<ToolOutput, CallError> {
        let checks = &gate.settings.output_checks;
        validate::check_output(checks, entry, &mut output).await?;
        if entry.tool().is_too_long(ctx, &output) {
            // A secret cut in two would match in neither part, so redact before cutting.
            gate.secrets.redact_value(&mut output);
            output = entry.tool().shorten(ctx, output).await?;
        }
        Ok(output)
    }
}

impl RecordedRequest for ToolRunRequest {
    fn pending_listing<'a>(&self, gate: &'a Gate, call: &'a ToolCall) -> Option<BoxFuture<'a, ()>> {
        if gate.catalog.is_settled(&call.tool) {
            return None;
        }
        Some(Box::pin(gate.catalog.wait_for_listings(Some(&call.tool))))
    }

    fn look_up(&mut self, gate: &Gate, call: &ToolCall) {
        self.called = gate.look_up(call);
    }

    fn note_input(&self, gate: &Gate, call: &ToolCall, record: &mut OpenAuditRecord<'_>) {
        note_tool_subject(gate, record, call, &self.called);
        keep_arguments(gate, record, call, &self.called);
    }

    fn input_secrets(&self, gate: &Gate, call: &ToolCall) -> CallSecrets {
        gate.secrets.call_secrets(&call.input)
    }

    fn begin_trace(&self, gate: &Gate, call: &mut ToolCall) -> CallTrace {
        if gate.observer.is_none() {
            return CallTrace::default();
        }
        CallTrace::begin(gate, call, self.called.target())
    }

    fn ending(output: &ToolOutput) -> ToolRunStatus {
        output.ending
    }
}

/// A request to start a job: all checks that can refuse the job before the job is stored, including
/// the tool's own check.
pub(super) struct JobStart;

impl GatedRequest for JobStart {
    type Target = Arc<CatalogToolEntry>;
    type Output = Arc<CatalogToolEntry>;

    fn resolve(
        &mut self,
        gate: &Gate,
        call: &ToolCall,
    ) -> impl Future<Output = Result<Self::Target, CallError>> + Send {
        ready(gate.find_called(call, &gate.look_up(call)))
    }

    async fn validate(
        &mut self,
        entry: &Self::Target,
        call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        // The job keeps the input as it was sent.
        validated_input(entry, call, call.input.clone()).await
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, entry: &'t Self::Target) -> GatedRequestRules<'t> {
        // Counted before the tool's own check, because some calls begin with that check.
        tool_rules(entry, RequestAdmissionKind::JobStart(entry.spec()))
    }

    fn check_support(&self, entry: &Self::Target) -> Result<(), CallError> {
        match entry.spec().job {
            JobSupport::Never => Err(CallError::NoJob { tool: entry.spec().id.to_string() }),
            JobSupport::Optional | JobSupport::Preferred | JobSupport::Required => Ok(()),
        }
    }

    fn run<'t>(
        &'t mut self,
        entry: &'t Self::Target,
        ctx: &'t ToolContext,
        input: Value,
    ) -> ToolFuture<'t, Self::Output> {
        Box::pin(async move {
            if entry.tool().has_prepare() {
                entry.tool().prepare(ctx, &input).await?;
            }
            Ok(entry.clone())
        })
    }
}

/// Returns the normalized `input` for the tool `entry`, after validation.
async fn validated_input(
    entry: &CatalogToolEntry,
    call: &ToolCall,
    input: Value,
) -> Result<Value, CallError> {
    let input = entry.tool().normalize_input(input);
    validate::check_header_params(entry, &input, call.metadata.header_params.as_deref())?;
    validate::check_input(entry, input).await
}

/// Returns the rules of a request that calls the tool `entry`.
fn tool_rules<'t>(
    entry: &'t CatalogToolEntry,
    limit: RequestAdmissionKind<'t>,
) -> GatedRequestRules<'t> {
    let spec = entry.spec();
    GatedRequestRules { guard: spec, kind: PolicyRequestKind::Tool, limit, deadline: spec.deadline }
}
