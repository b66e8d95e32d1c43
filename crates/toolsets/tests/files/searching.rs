//! soon
use serde_json::json;
use crate::space::Space;
#[tokio::test]
async fn dbg_search() {
    let space = Space::new();
    space.put("a/mine", "canary of my own\nline\n");
    println!("{}", space.ok("files.search", json!({ "text": "canary" })).await);
    println!("{}", space.ok("files.search", json!({ "glob": "*" })).await);
    println!("{}", space.text("files.tree", json!({})).await);
}
