//! Requests for resources and prompts, which pass the same checks as calls.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    AnyPrompt, CallError, ChangeFeed, KeepActiveGuard, PromptArguments, RenderedPrompt,
    ResourceContents, ResourceSource, ResourceSpec, ToolCall, ToolContext, ToolFuture, ToolSpec,
};

use super::CallerContentRequest;
use crate::Gate;
use crate::audit::OpenAuditRecord;
use crate::pipeline::call_observer::CallTarget;
use crate::pipeline::call_trace::CallTrace;
use crate::pipeline::gated_request::{
    GatedRequest, GatedRequestRules, RecordedRequest, RequestAdmissionKind,
};
use crate::pipeline::validate;
use crate::policy::PolicyRequestKind;
use crate::secrets::CallSecrets;

/// A request to read the resource `uri`. `source` is the source to which the URI belongs.
pub(super) struct ResourceReadRequest<'a> {
    pub(super) source: Result<Arc<dyn ResourceSource>, CallError>,
    pub(super) uri: &'a str,
}

/// Input of a resource read as its audit record shows it.
#[derive(Serialize)]
struct ResourceAuditInput<'a> {
    uri: &'a str,
}

impl GatedRequest for ResourceReadRequest<'_> {
    type Target = Arc<dyn ResourceSource>;
    type Output = Vec<ResourceContents>;

    async fn resolve(&mut self, _gate: &Gate, _call: &ToolCall) -> Result<Self::Target, CallError> {
        self.source.clone()
    }

    async fn validate(
        &mut self,
        source: &Self::Target,
        _call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        Ok(source.policy_input(self.uri))
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, source: &'t Self::Target) -> GatedRequestRules<'t> {
        let guard = source.guard();
        GatedRequestRules {
            guard,
            kind: PolicyRequestKind::Guarded,
            limit: RequestAdmissionKind::Call(guard),
            deadline: guard.deadline,
        }
    }

    fn run<'t>(
        &'t mut self,
        source: &'t Self::Target,
        ctx: &'t ToolContext,
        _input: Value,
    ) -> ToolFuture<'t, Self::Output> {
        source.read(ctx, self.uri)
    }
}

impl RecordedRequest for ResourceReadRequest<'_> {
    fn note_input(&self, gate: &Gate, _call: &ToolCall, record: &mut OpenAuditRecord<'_>) {
        let is_kept = gate.settings.keeps_recent_calls;
        let input = ResourceAuditInput { uri: self.uri };
        record.note_input(&input, is_kept, || self.source.is_ok());
        let input = json!({ "uri": self.uri });
        record.note_arguments(&input, gate.settings.recorded_arguments, &gate.secrets);
    }

    fn input_secrets(&self, _gate: &Gate, _call: &ToolCall) -> CallSecrets {
        CallSecrets::default()
    }

    fn begin_trace(&self, gate: &Gate, call: &mut ToolCall) -> CallTrace {
        let target = self
            .source
            .as_ref()
            .map_or(CallTarget::UnknownResource, |source| CallTarget::Resource(&source.guard().id));
        CallTrace::begin(gate, call, target)
    }
}

/// A request for the prompt `name`, filled with `arguments`.
pub(super) struct PromptRenderRequest<'a> {
    pub(super) reader: &'a CallerContentRequest<'a>,
    pub(super) name: &'a str,
    pub(super) arguments: PromptArguments,
}

/// Input of a prompt request as its audit record shows it.
#[derive(Serialize)]
struct PromptAuditInput<'a> {
    name: &'a str,
    arguments: &'a PromptArguments,
}

impl GatedRequest for PromptRenderRequest<'_> {
    type Target = Arc<dyn AnyPrompt>;
    type Output = RenderedPrompt;

    async fn resolve(&mut self, _gate: &Gate, _call: &ToolCall) -> Result<Self::Target, CallError> {
        self.reader.find_prompt(self.name).await
    }

    async fn validate(
        &mut self,
        prompt: &Self::Target,
        _call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        let checked = validate::check_prompt_arguments(prompt.spec(), &self.arguments);
        let input = json!({ "prompt": prompt.spec().name, "arguments": self.arguments });
        checked.map(|()| input)
    }

    fn rules<'t>(&mut self, gate: &'t Gate, prompt: &'t Self::Target) -> GatedRequestRules<'t> {
        let guard = prompt.guard();
        GatedRequestRules {
            guard: guard.unwrap_or(&gate.prompt_spec),
            kind: if guard.is_some() {
                PolicyRequestKind::Guarded
            } else {
                PolicyRequestKind::TextPrompt
            },
            limit: RequestAdmissionKind::Prompt(guard),
            deadline: None,
        }
    }

    fn run<'t>(
        &'t mut self,
        prompt: &'t Self::Target,
        ctx: &'t ToolContext,
        _input: Value,
    ) -> ToolFuture<'t, RenderedPrompt> {
        prompt.make(ctx, std::mem::take(&mut self.arguments))
    }
}

impl RecordedRequest for PromptRenderRequest<'_> {
    fn note_input(&self, gate: &Gate, _call: &ToolCall, record: &mut OpenAuditRecord<'_>) {
        let input = PromptAuditInput { name: self.name, arguments: &self.arguments };
        record.note_input(&input, gate.settings.keeps_recent_calls, || true);
    }

    fn input_secrets(&self, gate: &Gate, _call: &ToolCall) -> CallSecrets {
        gate.secrets.argument_secrets(&self.arguments)
    }

    fn begin_trace(&self, gate: &Gate, call: &mut ToolCall) -> CallTrace {
        CallTrace::begin(gate, call, CallTarget::Prompt(self.name))
    }
}

/// A request for up to `entries_max` entries of the folder `uri` that follow the URI `after`.
pub(super) struct FolderListRequest<'a> {
    pub(super) source: Arc<dyn ResourceSource>,
    pub(super) uri: &'a str,
    pub(super) after: Option<&'a str>,
    pub(super) entries_max: usize,
}

impl GatedRequest for FolderListRequest<'_> {
    type Target = Arc<dyn ResourceSource>;
    type Output = Vec<ResourceSpec>;

    async fn resolve(&mut self, _gate: &Gate, _call: &ToolCall) -> Result<Self::Target, CallError> {
        Ok(self.source.clone())
    }

    async fn validate(
        &mut self,
        source: &Self::Target,
        _call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        Ok(source.policy_input(self.uri))
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, source: &'t Self::Target) -> GatedRequestRules<'t> {
        look_rules(source.guard())
    }

    fn run<'t>(
        &'t mut self,
        source: &'t Self::Target,
        ctx: &'t ToolContext,
        _input: Value,
    ) -> ToolFuture<'t, Self::Output> {
        source.list_folder(ctx, self.uri, self.after, self.entries_max)
    }
}

/// A request to watch the resource `uri`, which publishes to `changes` when the resource changes.
pub(super) struct ResourceWatchRequest<'a> {
    pub(super) source: Arc<dyn ResourceSource>,
    pub(super) uri: &'a str,
    pub(super) changes: &'a ChangeFeed,
}

impl GatedRequest for ResourceWatchRequest<'_> {
    type Target = Arc<dyn ResourceSource>;
    type Output = KeepActiveGuard;

    async fn resolve(&mut self, _gate: &Gate, _call: &ToolCall) -> Result<Self::Target, CallError> {
        Ok(self.source.clone())
    }

    async fn validate(
        &mut self,
        source: &Self::Target,
        _call: &mut ToolCall,
    ) -> Result<Value, CallError> {
        Ok(source.policy_input(self.uri))
    }

    fn rules<'t>(&mut self, _gate: &'t Gate, source: &'t Self::Target) -> GatedRequestRules<'t> {
        look_rules(source.guard())
    }

    fn run<'t>(
        &'t mut self,
        source: &'t Self::Target,
        ctx: &'t ToolContext,
        _input: Value,
    ) -> ToolFuture<'t, KeepActiveGuard> {
        source.watch(ctx, self.uri, self.changes)
    }
}

/// Returns the rules for a request that leaves no audit record. The policy rules of the tool
/// `guard` apply to the source.
fn look_rules(guard: &ToolSpec) -> GatedRequestRules<'_> {
    GatedRequestRules {
        guard,
        kind: PolicyRequestKind::Guarded,
        limit: RequestAdmissionKind::Look,
        deadline: None,
    }
}
