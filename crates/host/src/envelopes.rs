//! Builds the envelopes of finished calls, validates them against their schema and logs them. An
//! envelope is a JSON object with the outcome, ids and times of a call.

mod ids;
mod log;

use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolgate_contract::{
    CallEnvelope, CallError, EnvelopeError, EnvelopeErrorCode, EnvelopeMetadata,
    EnvelopeRequestInfo, TraceContext, ValidationProblem, canonical_json_len, exact_json,
    lock_read, lock_write,
};

use crate::pipeline::validate::OutputSchemaCheck;
use crate::schemas::{SchemaRegistry, SharedSchemaId};
use crate::secrets::SecretSet;

pub use log::EnvelopeLog;

/// Builder of envelopes, the JSON objects with outcome, ids and times that answer calls. Also
/// validates and logs the envelopes.
#[derive(Debug, Default)]
pub struct EnvelopeBuilder {
    settings: EnvelopeSettings,
    schemas: Arc<SchemaRegistry>,
    log: Option<EnvelopeLog>,
    /// Secrets that are redacted from the log of envelopes.
    secrets: RwLock<Arc<SecretSet>>,
}

/// Settings for the building of envelopes.
#[derive(Debug, Clone, Copy)]
pub struct EnvelopeSettings {
    /// Reaction to an envelope that violates its schema. By default, the violation is logged and
    /// the envelope is sent.
    pub validation: OutputSchemaCheck,
    /// True if equal requests get equal envelopes: ids are derived from the request, and durations
    /// are 0. False by default.
    pub deterministic: bool,
}

impl Default for EnvelopeSettings {
    fn default() -> Self {
        Self { validation: OutputSchemaCheck::Shadow, deterministic: false }
    }
}

impl EnvelopeBuilder {
    /// Creates a builder that validates envelopes against `schemas` and writes them to the file log
    /// `log`, if there is one.
    pub fn new(
        settings: EnvelopeSettings,
        schemas: Arc<SchemaRegistry>,
        log: Option<EnvelopeLog>,
    ) -> Self {
        Self { settings, schemas, log, secrets: RwLock::default() }
    }

    /// Redacts `secrets` from the log of envelopes, from now on.
    pub(crate) fn set_secrets(&self, secrets: SecretSet) {
        *lock_write(&self.secrets) = Arc::new(secrets);
    }

    /// Returns true if each call needs an envelope for the log, whatever its dialect.
    pub fn is_logging(&self) -> bool {
        self.log.is_some()
    }

    /// Checks the tool input in `origin` against the shared schema of tool calls.
    ///
    /// # Errors
    /// The input does not match, or names another tool.
    pub fn check_tool_io(&self, origin: &EnvelopeRequestInfo) -> Result<(), CallError> {
        let Some(io) = &origin.io else { return Ok(()) };
        let mut problems = self.schemas.shared_problems(SharedSchemaId::ToolIo, io);
        if problems.is_empty() && io["tool"].as_str() != origin.tool.as_deref() {
            let named = origin.tool.as_deref().unwrap_or_default();
            let message = format!("it differs from the called tool, `{named}`");
            problems.push(ValidationProblem { pointer: "/tool".to_owned(), message });
        }
        if problems.is_empty() { Ok(()) } else { Err(CallError::InvalidInput { problems }) }
    }

    /// Builds and logs the envelope that reports `outcome` of a call with this `origin`, `trace`
    /// and `duration`.
    pub fn build(
        &self,
        origin: &EnvelopeRequestInfo,
        outcome: Result<Value, CallError>,
        duration: Duration,
        trace: Option<&TraceContext>,
    ) -> CallEnvelope {
        let (sealed, problems) = self.build_checked(origin, outcome, duration);
        if let Some(log) = &self.log {
            let broken = !problems.is_empty();
            let secrets = lock_read(&self.secrets).clone();
            log.write(&sealed, broken.then_some(problems.as_slice()), trace, &secrets);
        }
        sealed
    }

    /// Builds the envelope of a refusal without logging it. Therefore unauthenticated clients
    /// cannot push other lines out of the log.
    pub fn build_unlogged(&self, origin: &EnvelopeRequestInfo, why: CallError) -> CallEnvelope {
        self.build_checked(origin, Err(why), Duration::ZERO).0
    }

    /// Builds the envelope of a call and checks it against the schema. Returns the envelope to
    /// send, which may report the schema problems instead of the call's outcome, and these
    /// problems.
    fn build_checked(
        &self,
        origin: &EnvelopeRequestInfo,
        outcome: Result<Value, CallError>,
        duration: Duration,
    ) -> (CallEnvelope, Vec<ValidationProblem>) {
        let envelope =
            self.assemble(origin, outcome.map_err(|why| EnvelopeError::from_error(&why)), duration);
        let (envelope, problems) = self.validate(envelope);
        let broken = (!problems.is_empty()).then(|| schema_violation(&problems));
        let sealed = match &broken {
            Some(error) if self.settings.validation == OutputSchemaCheck::Enforce => {
                let EnvelopeMetadata { request_id, trace_id, span_id, duration_ms, .. } =
                    envelope.meta;
                let replacement = self.assemble(origin, Err(error.clone()), duration);
                // The replacement keeps the ids of the request.
                let meta = EnvelopeMetadata {
                    request_id,
                    trace_id,
                    span_id,
                    duration_ms,
                    ..replacement.meta
                };
                CallEnvelope { meta, ..replacement }
            }
            Some(_) | None => envelope,
        };
        (sealed, problems)
    }

    /// Waits until all envelopes so far are logged, but at most 2 s.
    pub fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
    }

    fn assemble(
        &self,
        origin: &EnvelopeRequestInfo,
        outcome: Result<Value, EnvelopeError>,
        duration: Duration,
    ) -> CallEnvelope {
        let deterministic = self.settings.deterministic;
        let [request_id, trace_id, span_id] = ids::request_ids(origin, deterministic);
        let (data, error) = match outcome {
            Ok(data @ Value::Object(_)) => (Some(data), None),
            // In an envelope `data` is an object or absent.
            Ok(other) => (Some(exact_json::object([("value", other)])), None),
            Err(why) => (None, Some(why)),
        };
        CallEnvelope {
            ok: error.is_none(),
            meta: EnvelopeMetadata {
                request_id,
                trace_id,
                span_id,
                schema_version: CallEnvelope::VERSION.to_owned(),
                deterministic,
                transport: origin.transport.to_owned(),
                route: origin.route.clone(),
                method: origin.method.clone(),
                duration_ms: if deterministic { 0.0 } else { milliseconds(duration) },
                status: if error.is_none() { "ok" } else { "error" }.to_owned(),
                attempt: 0,
                input_bytes: canonical_json_len(&origin.payload),
                output_bytes: data.as_ref().map_or(0, canonical_json_len),
                tool_id: origin.tool.clone(),
                prompt_id: origin.prompt.clone(),
            },
            data,
            error,
        }
    }

    /// Validates an envelope against its schema. Returns the envelope to send and its schema
    /// problems.
    fn validate(&self, mut envelope: CallEnvelope) -> (CallEnvelope, Vec<ValidationProblem>) {
        if self.settings.validation == OutputSchemaCheck::Off {
            return (envelope, Vec::new());
        }
        // The data may be large, so it is moved and not cloned.
        let data = envelope.data.take();
        let mut value = serde_json::to_value(&envelope).unwrap_or_default();
        let fields = value.as_object_mut();
        let mut none = Map::new();
        let fields = fields.unwrap_or(&mut none);
        fields.insert("data".to_owned(), data.unwrap_or_default());
        let problems = self.schemas.shared_problems(SharedSchemaId::Envelope, &value);
        let data = value.get_mut("data").map(Value::take);
        envelope.data = data.filter(|data| !data.is_null());
        if !problems.is_empty() {
            let EnvelopeMetadata { route, method, request_id, .. } = &envelope.meta;
            let broken = CallError::InvalidOutput { problems: problems.clone() };
            tracing::error!(
                route,
                method,
                request_id,
                "an envelope does not match its schema: {broken}"
            );
        }
        (envelope, problems)
    }
}

/// Returns the error that replaces an envelope which violates its schema.
fn schema_violation(problems: &[ValidationProblem]) -> EnvelopeError {
    EnvelopeError {
        code: EnvelopeErrorCode::InvalidOutput,
        message: "the envelope does not match its schema; see the server's log".to_owned(),
        details: Some(json!({ "reason": "invalid_envelope", "problems": problems })),
    }
}

/// Converts a duration to milliseconds with three decimals.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests;
