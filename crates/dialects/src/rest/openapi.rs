//! Builds the OpenAPI document of the REST requests.

use serde_json::{Value, json};

/// Returns the OpenAPI document of the REST requests.
pub(super) fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "toolgate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Starts, lists, watches and cancels jobs.",
        },
        "paths": {
            "/v1/jobs": { "get": list_jobs(), "post": start_job() },
            "/v1/jobs/{job_id}": {
                "parameters": [job_id()],
                "get": operation("getJob", "Returns a job.", json!({ "200": job_response() })),
                "delete": operation(
                    "cancelJob",
                    "Cancels a job that has not ended, and returns the job.",
                    json!({ "200": job_response() }),
                ),
            },
            "/v1/jobs/{job_id}/events": {
                "parameters": [job_id()],
                "get": operation(
                    "watchJob",
                    "Streams the events of a job as server-sent events, from its start to its end. \
                     Each event has one JSON object as its data.",
                    json!({ "200": {
                        "description": "The events.",
                        "content": { "text/event-stream": { "schema": { "type": "string" } } },
                    } }),
                ),
            },
            "/v1/jobs/{job_id}/files/{name}": {
                "parameters": [job_id(), {
                    "name": "name",
                    "in": "path",
                    "required": true,
                    "schema": { "type": "string" },
                }],
                "get": operation(
                    "getFile",
                    "Returns a file that a job produced.",
                    json!({ "200": { "description": "The file.", "content": { "*/*": {} } } }),
                ),
            },
            "/openapi.json": {
                "get": operation(
                    "getDescription",
                    "Returns this document.",
                    json!({ "200": {
                        "description": "This document.",
                        "content": { "application/json": { "schema": { "type": "object" } } },
                    } }),
                ),
            },
        },
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}

fn list_jobs() -> Value {
    let page = json!({
        "type": "object",
        "required": ["jobs", "next"],
        "properties": {
            "jobs": { "type": "array", "items": reference("Job") },
            "next": { "type": ["string", "null"] },
        },
    });
    let mut list = operation(
        "listJobs",
        "Lists your jobs, newest first.",
        json!({ "200": {
            "description": "A page of jobs. Pass `next` as `after` for the next page.",
            "content": { "application/json": { "schema": page } },
        } }),
    );
    list["parameters"] = json!([{
        "name": "after",
        "in": "query",
        "schema": { "type": "string" },
        "description": "The last job of the previous page.",
    }]);
    list
}

fn start_job() -> Value {
    let mut start = operation(
        "startJob",
        "Calls a tool as a job.",
        json!({
            "202": {
                "description": "The job was stored and will run.",
                "headers": { "location": { "schema": { "type": "string" } } },
                "content": { "application/json": { "schema": reference("Job") } },
            },
            "413": problem("The request is too large."),
            "415": { "description": "The body is not `application/json`." },
        }),
    );
    start["requestBody"] = json!({
        "required": true,
        "content": { "application/json": { "schema": {
            "type": "object",
            "required": ["tool"],
            "additionalProperties": false,
            "properties": {
                "tool": { "type": "string", "examples": ["exec.run"] },
                "arguments": { "type": "object" },
                "keep_ms": { "type": "integer", "minimum": 0, "maximum": i64::MAX },
            },
        } } },
    });
    start
}

/// Returns an OpenAPI operation with its own responses, and those that every operation may have.
fn operation(id: &str, summary: &str, responses: Value) -> Value {
    let common = [
        ("400", "The request is invalid."),
        ("401", "A key or token is missing or unknown."),
        ("403", "The policy does not allow the request."),
        ("404", "There is no such job, tool or file."),
        ("429", "A limit was reached."),
        ("500", "The call failed."),
        ("503", "The server cannot answer now."),
    ];
    let mut all = responses;
    for (status, description) in common {
        all[status] = problem(description);
    }
    json!({ "operationId": id, "summary": summary, "responses": all })
}

fn problem(description: &str) -> Value {
    json!({
        "description": description,
        "content": { "application/problem+json": { "schema": reference("Problem") } },
    })
}

fn job_response() -> Value {
    json!({
        "description": "The job.",
        "content": { "application/json": { "schema": reference("Job") } },
    })
}

fn job_id() -> Value {
    json!({ "name": "job_id", "in": "path", "required": true, "schema": { "type": "string" } })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn schemas() -> Value {
    let optional = |kind: &str| json!({ "type": [kind, "null"] });
    json!({
        "Job": {
            "type": "object",
            "description": "A job. If the server also serves Zyra, `/v1/jobs/{job_id}` returns \
             the job in Zyra's form. Both forms have the same `job_id` and `status`.",
            "required": ["job_id", "status"],
            "properties": {
                "job_id": { "type": "string" },
                "status": { "enum": ["queued", "running", "succeeded", "failed", "canceled"] },
                "tool": { "type": "string" },
                "created": { "type": "string", "format": "date-time" },
                "updated": { "type": "string", "format": "date-time" },
                "started": optional("string"),
                "attempts": { "type": "integer" },
                "progress": { "type": "number", "minimum": 0, "maximum": 1 },
                "message": optional("string"),
                "open_questions": { "type": "integer" },
                "files": { "type": "array", "items": reference("File") },
                "result": optional("object"),
                "error": {
                    "type": ["object", "null"],
                    "properties": {
                        "reason": { "type": "string" },
                        "detail": { "type": "string" },
                    },
                },
            },
        },
        "File": {
            "type": "object",
            "required": ["name", "bytes", "media_type", "url"],
            "properties": {
                "name": { "type": "string" },
                "bytes": { "type": "integer" },
                "media_type": { "type": "string" },
                "url": { "type": "string" },
            },
        },
        "Problem": {
            "type": "object",
            "required": ["detail"],
            "properties": {
                "status": { "type": "integer" },
                "detail": { "type": "string" },
                "reason": { "type": "string" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_a_schema() {
        let document = document();
        let text = document.to_string();
        let names = text.split("#/components/schemas/").skip(1);
        for name in names.filter_map(|rest| rest.split('"').next()) {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
