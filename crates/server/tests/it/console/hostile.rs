//! Tests of names, descriptions, paths and output with HTML markup, which console pages must
//! escape.

use serde_json::json;

use crate::console::ConsoleClient;
use crate::support::{ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, wait_until};

/// Text that would run a script, or end an HTML attribute, if a page contained it unescaped.
const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>";

/// Output of an upstream that would run a script if a page contained it unescaped.
const HOSTILE_ERROR: &str = "<script>alert(1)</script><img src=x onerror=alert(1)>";

#[test]
fn no_page_interprets_markup_in_paths_output_names_and_descriptions() {
    let command = format!(
        "[command.\"a.hostile\"]\nabout = {about}\nprogram = \"echo\"\nargv = [\"{{word}}\"]\n\
         args = {{ word = \"string!\" }}\n",
        about = json!(format!("Says {HOSTILE}")),
    );
    let workspace = TempWorkspace::new().file("toolgate.toml", command).file("a.html", HOSTILE);
    let served = ServerLaunchOptions::over(&workspace).set("audit_arguments", "redacted").served();
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

#[test]
fn the_kept_arguments_and_the_result_of_a_call_are_text() {
    let workspace = TempWorkspace::new().file("a.html", HOSTILE);
    let served = ServerLaunchOptions::over(&workspace).served();
    let edits = json!([{ "old": HOSTILE, "new": format!("{HOSTILE}!") }]);
    served.ask(&call(1, "files_edit", json!({ "path": "a.html", "edits": edits, HOSTILE: 1 })));
    served.ask(&call(2, "files_edit", json!({ "path": "a.html", "edits": edits })));
    served.ask(&call(3, "exec_run", json!({ "command": "echo", "args": [HOSTILE] })));
    served.outcomes(3);
    let person = ConsoleClient::with_link(&served);
    for seq in 1..4 {
        let page = person.page(&format!("/console/calls/{seq}"));
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        assert!(!page.contains("<script>") && !page.contains("<img"), "{page}");
        assert!(!page.contains("\"'>"), "{page}");
    }
}

#[test]
fn the_name_of_a_file_of_a_job_and_the_error_of_an_upstream_are_text() {
    let name = "<img src=x onerror=alert(1)>.txt";
    let settings = format!(
        "[command.\"a.makes\"]\nabout = \"Makes a file.\"\nprogram = \"touch\"\n\
         argv = [{name:?}]\nartefacts = [\"*.txt\"]\n\
         [upstream.evil]\ncommand = [\"/bin/sh\", \"-c\", \"echo '{HOSTILE_ERROR}' >&2; exit 1\"]\n"
    );
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", settings)).served();
    served.ask(&call(1, "evil_x", json!({})));
    let body = json!({ "tool": "a.makes", "arguments": {} });
    let post = TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/jobs").malformed();
    let id = served.send(&post).json()["job_id"].as_str().unwrap().to_owned();
    let person = ConsoleClient::with_link(&served);
    let job = format!("/console/jobs/{id}");
    wait_until("the job has a file", || person.page(&job).contains("&lt;img src=x"));
    wait_until("the upstream failed", || person.page("/console/upstreams").contains("unavailable"));
    for path in [job.as_str(), "/", "/console/upstreams", "/console/calls", "/console/jobs"] {
        let page = person.page(path);
        assert!(!page.contains("<img") && !page.contains("<script>"), "{path}: {page}");
    }
    let file = person.get(&format!("{job}/files/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E.txt"));
    assert_eq!((file.status, file.header("content-type")), (200, Some("application/octet-stream")));
    assert!(file.header("content-disposition").unwrap().starts_with("attachment"), "{file:?}");
}
