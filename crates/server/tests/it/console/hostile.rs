//! Names, descriptions, paths and output that try to be markup.

use serde_json::json;

use crate::console::ConsoleClient;
use crate::support::{Launch, Workspace, call};

/// Text that would run a script or leave an attribute if it were interpreted.
const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>";

#[test]
fn no_page_interprets_markup_in_paths_output_names_and_descriptions() {
    let command = format!(
        "[command.\"a.hostile\"]\nabout = {about}\nprogram = \"echo\"\nargv = [\"{{word}}\"]\n\
         args = {{ word = \"string!\" }}\n",
        about = json!(format!("Says {HOSTILE}")),
    );
    let workspace = Workspace::new().file("toolgate.toml", command).file("a.html", HOSTILE);
    let served = Launch::over(&workspace).set("audit_arguments", "redacted").served();
    served.ask(&call(1, "files_read", json!({ "path": HOSTILE })));
    served.ask(&call(2, HOSTILE, json!({ "path": HOSTILE })));
    served.ask(&call(3, "a_hostile", json!({ "word": HOSTILE })));
    served.outcomes(3);
    let person = ConsoleClient::with_link(&served);
    let quoted = "%22'%3E%3Cscript%3Ealert(1)%3C/script%3E";
    let mut pages = vec![
        person.page("/"),
        person.page("/console/calls"),
        person.page("/console/calls/1"),
        person.page("/console/calls/2"),
        person.page("/console/calls/3"),
        person.page("/console/tools?q=hostile"),
        person.page("/console/tools/a.hostile"),
        person.page(&format!("/console/calls?caller={quoted}&tool={quoted}&outcome={quoted}")),
        person.page(&format!("/console/policy?caller={quoted}&tool={quoted}&input={quoted}")),
        person.page(&format!("/console/tools?q={quoted}")),
        person.page(&format!("/console/sign-in?token={quoted}")),
        person.get(&format!("/console/upstreams/{quoted}")).text(),
    ];
    for (tool, field, value) in
        [("a.hostile", "arg.word", HOSTILE), ("files.read", "arg.path", "a.html")]
    {
        pages.push(person.post(&format!("/console/tools/{tool}/call"), &[(field, value)]).text());
    }
    for page in &pages {
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
        assert!(!page.contains("\"'>"), "{page}");
    }
    let shown = pages.iter().filter(|page| page.contains("&lt;script&gt;alert(1)")).count();
    assert!(shown >= 8, "{shown} pages show the text");
}
