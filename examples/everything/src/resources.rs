//! Example resources: a text, bytes, one to watch, and a template.

use serde_json::json;
use toolgate_contract::{ResourceData, ResourceSpec, ResourceTemplate};
use toolgate_service::{ServerBuilder, StaticResourceSource};

use crate::content::DOT;

/// Adds the resources of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    let text = ResourceSpec::new("test://static-text", "static-text")
        .with_description("A text that never changes.")
        .with_media_type("text/plain");
    let dot = ResourceSpec::new("test://static-binary", "static-binary")
        .with_description("A red dot.")
        .with_media_type("image/png");
    let watched = ResourceSpec::new("test://watched-resource", "watched-resource")
        .with_description("A text that clients can watch. It never changes.")
        .with_media_type("text/plain");
    let example = ResourceSpec::new("test://example-resource", "example-resource")
        .with_description("An example of a text.")
        .with_media_type("text/plain");
    let data = ResourceTemplate::new("test://template/{id}/data", "data")
        .with_description("The data of an id.")
        .with_media_type("application/json");
    builder.resources(
        StaticResourceSource::new("everything")
            .text(text, "This is the content of the static text resource.")
            .bytes(dot, DOT)
            .text(watched, "This is the content of the watched resource.")
            .text(example, "This is the content of the example resource.")
            .template(data, |variables| {
                let id = &variables["id"];
                let text = format!("Data for ID: {id}");
                let data = json!({ "id": id, "templateTest": true, "data": text });
                Some(ResourceData::Text(data.to_string()))
            }),
    )
}
