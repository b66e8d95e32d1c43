//! Builds the envelopes of finished calls, validates them against their schema and logs them.

mod ids;
mod log;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallError, Canonical, Envelope, EnvelopeError, Meta, Problem, Trace, Via, canonical_bytes,
};

use crate::schemas::{SchemaRegistry, Shared};
use crate::secrets::Secrets;
use crate::validate::OutputCheck;

pub use log::EnvelopeLog;

/// Maker of envelopes.
#[derive(Debug, Default)]
pub struct Envelopes {
    settings: EnvelopeSettings,
    schemas: Arc<SchemaRegistry>,
    log: Option<EnvelopeLog>,
    /// Secrets that are redacted from the log.
    secrets: Arc<Secrets>,
}

/// Settings of envelopes.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeSettings {
    /// Treatment of an envelope that breaks its schema; logged and sent by default.
    pub validation: OutputCheck,
    /// True if equal requests must have equal envelopes: ids are derived from the request, and
    /// durations are 0. False by default.
    pub deterministic: bool,
}

impl Default for EnvelopeSettings {
    fn default() -> Self {
        Self { validation: OutputCheck::Shadow, deterministic: false }
    }
}

impl Envelopes {
    /// Creates a maker of envelopes that validates against `schemas` and writes to `log`, if there
    /// is one.
    pub fn new(
        settings: EnvelopeSettings,
        schemas: Arc<SchemaRegistry>,
        log: Option<EnvelopeLog>,
    ) -> Self {
        Self { settings, schemas, log, secrets: Arc::default() }
    }

    /// Redacts `secrets` from the log.
    pub(crate) fn with_secrets(self, secrets: Secrets) -> Self {
        Self { secrets: Arc::new(secrets), ..self }
    }

    /// Returns true if each call needs an envelope for the log, whatever its dialect.
    pub fn are_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Checks the tool input that came by `via` against the shared schema of tool calls.
    ///
    /// # Errors
    /// If the input does not match, or names another tool.
    pub fn admit(&self, via: &Via) -> Result<(), CallError> {
        let Some(io) = &via.io else { return Ok(()) };
        let mut problems = self.schemas.shared(Shared::ToolIo).problems(io);
        if problems.is_empty() && io["tool"].as_str() != via.tool.as_deref() {
            let named = via.tool.as_deref().unwrap_or_default();
            let message = format!("it is not the tool that is called, `{named}`");
            problems.push(Problem { pointer: "/tool".to_owned(), message });
        }
        if problems.is_empty() { Ok(()) } else { Err(CallError::InvalidInput { problems }) }
    }

    /// Builds and logs the envelope of a call that came by `via`, in `trace`, and took `took`.
    pub fn seal(
        &self,
        via: &Via,
        came: Result<Value, CallError>,
        took: Duration,
        trace: Option<&Trace>,
    ) -> Envelope {
        let (sealed, problems) = self.sealed(via, came, took);
        if let Some(log) = &self.log {
            let broken = !problems.is_empty();
            log.write(&sealed, broken.then_some(problems.as_slice()), trace, &self.secrets);
        }
        sealed
    }

    /// Builds the envelope of a refusal without logging it, so that unauthenticated clients cannot
    /// push other lines out of the log.
    pub fn seal_unlogged(&self, via: &Via, why: CallError) -> Envelope {
        self.sealed(via, Err(why), Duration::ZERO).0
    }

    /// Builds the envelope to send. The problems are those of its first form.
    fn sealed(
        &self,
        via: &Via,
        came: Result<Value, CallError>,
        took: Duration,
    ) -> (Envelope, Vec<Problem>) {
        let made = self.make(via, came.map_err(|why| EnvelopeError::of(&why)), took);
        let (made, problems) = self.check(made);
        let broken = (!problems.is_empty()).then(|| broken(&problems));
        let sealed = match &broken {
            Some(error) if self.settings.validation == OutputCheck::Enforce => {
                let Meta { request_id, trace_id, span_id, duration_ms, .. } = made.meta;
                let again = self.make(via, Err(error.clone()), took);
                // The replacement keeps the ids of the request.
                let meta = Meta { request_id, trace_id, span_id, duration_ms, ..again.meta };
                Envelope { meta, ..again }
            }
            Some(_) | None => made,
        };
        (sealed, problems)
    }

    /// Waits until all envelopes so far are logged, for 2 s at most.
    pub fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
    }

    fn make(&self, via: &Via, came: Result<Value, EnvelopeError>, took: Duration) -> Envelope {
        let deterministic = self.settings.deterministic;
        let [request_id, trace_id, span_id] = ids::of(via, deterministic);
        let (data, error) = match came {
            Ok(data @ Value::Object(_)) => (Some(data), None),
            // In an envelope `data` is an object or absent.
            Ok(other) => (Some(json!({ "value": other })), None),
            Err(why) => (None, Some(why)),
        };
        Envelope {
            ok: error.is_none(),
            meta: Meta {
                request_id,
                trace_id,
                span_id,
                schema_version: Envelope::VERSION.to_owned(),
                deterministic,
                transport: via.transport.to_owned(),
                route: via.route.clone(),
                method: via.method.clone(),
                duration_ms: if deterministic { 0.0 } else { milliseconds(took) },
                status: if error.is_none() { "ok" } else { "error" }.to_owned(),
                attempt: 0,
                input_bytes: canonical_bytes(&via.payload),
                output_bytes: data.as_ref().map_or(0, canonical_bytes),
                tool_id: via.tool.clone(),
                prompt_id: via.prompt.clone(),
            },
            data,
            error,
        }
    }

    /// Returns the envelope and its schema problems.
    fn check(&self, mut made: Envelope) -> (Envelope, Vec<Problem>) {
        if self.settings.validation == OutputCheck::Off {
            return (made, Vec::new());
        }
        // The data may be large, so it is moved and not cloned.
        let data = made.data.take();
        let mut value = serde_json::to_value(&made).unwrap_or_default();
        let fields = value.as_object_mut();
        let mut none = Map::new();
        let fields = fields.unwrap_or(&mut none);
        fields.insert("data".to_owned(), data.unwrap_or_default());
        let problems = self.schemas.load_envelope().problems(&value);
        let data = value.get_mut("data").map(Value::take);
        made.data = data.filter(|data| !data.is_null());
        if !problems.is_empty() {
            let Meta { route, method, request_id, .. } = &made.meta;
            let broken = CallError::InvalidOutput { problems: problems.clone() };
            tracing::error!(route, method, request_id, "an envelope breaks its schema: {broken}");
        }
        (made, problems)
    }
}

/// Returns the error that replaces an envelope that breaks its schema.
fn broken(problems: &[Problem]) -> EnvelopeError {
    EnvelopeError {
        code: Canonical::InvalidOutput,
        message: "the envelope breaks its schema; the server's log says more".to_owned(),
        details: Some(json!({ "reason": "invalid_envelope", "problems": problems })),
    }
}

/// Converts to milliseconds with three decimals; more digits only lengthen lines.
fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests;
