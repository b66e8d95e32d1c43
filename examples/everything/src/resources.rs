//! Resources: a text, bytes, one to watch, and a pattern of many.

use serde_json::json;
use toolgate::{Offer, Shelf};
use toolgate_contract::{Held, ResourceSpec, ResourceTemplate};

use crate::content::DOT;

pub(crate) fn add(offer: Offer) -> Offer {
    let text = ResourceSpec::new("test://static-text", "static-text")
        .about("A text that stays as it is.")
        .media_type("text/plain");
    let dot = ResourceSpec::new("test://static-binary", "static-binary")
        .about("A red dot.")
        .media_type("image/png");
    let watched = ResourceSpec::new("test://watched-resource", "watched-resource")
        .about("A text to be told of when it changes, which it does not.")
        .media_type("text/plain");
    let example = ResourceSpec::new("test://example-resource", "example-resource")
        .about("An example of a text.")
        .media_type("text/plain");
    let data = ResourceTemplate::new("test://template/{id}/data", "data")
        .about("What is known of each id.")
        .media_type("application/json");
    offer.resources(
        Shelf::new("everything")
            .text(text, "This is the content of the static text resource.")
            .bytes(dot, DOT)
            .text(watched, "This is the content of the watched resource.")
            .text(example, "This is the content of the example resource.")
            .template(data, |told| {
                let id = &told["id"];
                let text = format!("Data for ID: {id}");
                let data = json!({ "id": id, "templateTest": true, "data": text });
                Some(Held::Text(data.to_string()))
            }),
    )
}
