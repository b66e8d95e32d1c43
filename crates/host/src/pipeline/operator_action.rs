//! Actions of a person at the console, which pass the same checks as calls.

use std::future::ready;
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallError, CallEventSink, CallMetadata, Caller, Effects, PreparedCallValue, QuestionAsker,
    ResultText, ToolCall, ToolContext, ToolFuture, ToolId, ToolOutput, ToolRunStatus, ToolSpec,
};

use crate::pipeline::call_observer::CallTarget;
use crate::pipeline::call_trace::CallTrace;
use crate::pipeline::gated_request::{
    GatedRequest, GatedRequestRules, RecordedRequest, RequestAdmissionKind,
};
use crate::pipeline::run_recorded;
use crate::policy::PolicyRequestKind;
use crate::secrets::CallSecrets;
use crate::{Gate, Host};

/// An action that a person takes at the console, such as the approval of a tool. The rules of
/// `[[policy.rules]]` apply to its id, and it leaves an audit record.
pub(crate) struct OperatorAction<'a> {
    pub(crate) spec: Arc<ToolSpec>,
    /// Future that performs the action. `None` once the action runs.
    pub(crate) work: Option<ToolFuture<'a, ToolOutput>>,
}

impl<'a> OperatorAction<'a> {
    /// Creates the action with the tool id `id`, which the future `work` performs.
    pub(crate) fn new(id: ToolId, work: ToolFuture<'a, ToolOutput>) -> Self {
        let about = "An action of a person at the console.";
        let spec = ToolSpec::new(id, "Console action", about, Effects::Changes);
        Self { spec: Arc::new(spec), work: Some(work) }
    }
}

impl GatedRequest for OperatorAction<'_> {
    type Target = Arc<ToolSpec>;
    type Output = ToolOutput;

    async fn resolve(&mut self, _gate: &Gate, _call: &ToolCall) -> Result<Self::Target, CallError> {
        Ok(self.spec.clone())
    }

    async fn validate(
        &mut self,
        _spec: &Self::Target,
        call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        Ok(call.input.take())
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, spec: &'t Self::Target) -> GatedRequestRules<'t> {
        // The settings of `[tools]` are about tools of agents, so they do not apply.
        let kind = PolicyRequestKind::TextPrompt;
        GatedRequestRules {
            guard: spec,
            kind,
            limit: RequestAdmissionKind::Call(spec),
            deadline: None,
        }
    }

    fn run<'t>(
        &'t mut self,
        _spec: &'t Self::Target,
        _ctx: &'t ToolContext,
        _input: Value,
    ) -> ToolFuture<'t, Self::Output> {
        match self.work.take() {
            Some(work) => work,
            // An action runs once.
            None => {
                let text = ResultText::default();
                Box::pin(ready(Ok(ToolOutput::new(Value::Null, text, ToolRunStatus::Done))))
            }
        }
    }
}

impl RecordedRequest for OperatorAction<'_> {
    fn input_secrets(&self, gate: &Gate, call: &ToolCall) -> CallSecrets {
        gate.secrets.call_secrets(&call.input)
    }

    fn begin_trace(&self, gate: &Gate, call: &mut ToolCall) -> CallTrace {
        CallTrace::begin(gate, call, CallTarget::Tool(&self.spec.id))
    }
}

impl Host {
    /// Runs `work`, the action `id` with `input` that `caller` takes at the console. The action
    /// passes the same checks as a call, and leaves an audit record.
    ///
    /// # Errors
    /// The policy or a limit refuses the action, or `work` fails.
    pub async fn run_operator_action(
        &self,
        caller: Caller,
        id: ToolId,
        input: Value,
        work: ToolFuture<'_, ToolOutput>,
    ) -> Result<ToolOutput, CallError> {
        let gate = self.gate();
        let mut call = ToolCall {
            tool: id.to_string(),
            input,
            caller,
            dialect: "console".into(),
            cancel: CancellationToken::new(),
            events: CallEventSink::none(),
            job: None,
            asker: QuestionAsker::none(),
            metadata: CallMetadata::default(),
            time_limit: None,
            started_work: PreparedCallValue::default(),
        };
        run_recorded(&gate, &mut call, OperatorAction::new(id, work)).await
    }
}
