//! Tests of the content of the console's pages.

use std::fs;

use serde_json::json;

use crate::console::ConsoleClient;
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, keys_of, wait_until,
};

#[test]
fn calls_are_listed_filtered_and_shown_in_full() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    served.ask(&call(2, "files_read", json!({ "path": "missing.md" })));
    served.ask(&call(3, "files_read", json!({ "path": "missing.md" })));
    served.outcomes(3);
    let person = ConsoleClient::with_link(&served);
    let all = person.page("/console/calls");
    assert!(all.contains("README.md") && all.contains("missing.md"), "{all}");
    let failed = person.page("/console/calls?failed=1&tool=files.*&caller=http&hours=1");
    assert!(!failed.contains("README.md") && failed.contains("missing.md"), "{failed}");
    let by_subject = person.page("/console/calls?subject=missing&caller=http");
    assert!(!by_subject.contains("README.md"), "{by_subject}");
    assert!(by_subject.contains("missing.md"), "{by_subject}");
    let one = person.page("/console/calls/2");
    let parts = [
        "missing.md",
        "not_found",
        "Audit seal",
        "Hash of the input",
        "Time of each step",
        "does not exist",
    ];
    for part in parts {
        assert!(one.contains(part), "{part}: {one}");
    }
    assert_eq!(person.get("/console/calls/99").status, 404);
    assert_eq!(person.get("/console/calls/x").status, 404);
    assert_eq!(person.get("/console").status, 308);
    let overview = person.page("/");
    assert!(overview.contains("Failed most in the last hour"), "{overview}");
    assert!(overview.contains("(2 calls)"), "{overview}");
    assert!(overview.contains("/console/calls?failed=1&amp;hours=1&amp;tool=files"), "{overview}");
    assert!(overview.contains("`missing.md` does not exist"), "{overview}");
    let callers = person.page("/console/callers");
    assert!(callers.contains("/console/calls?caller=http"), "{callers}");
}

#[test]
fn a_refused_call_leads_to_the_rule_and_to_one_that_allows_it() {
    let rule = "[[policy.rules]]\nname = \"no-secrets\"\neffect = \"deny\"\ntools = [\"files.write\"]\n\
                when = \"input.path.startsWith('secret')\"\n";
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", rule)).served();
    served.ask(&call(1, "files_write", json!({ "path": "secret.txt", "content": "x" })));
    served.outcomes(1);
    let person = ConsoleClient::with_link(&served);
    let refused = person.page("/console/calls/1");
    for part in ["Why the call was refused", "startsWith", "To allow the call", "allow-files_write"]
    {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let (_, link) = refused.split_once("href=\"/console/policy?").unwrap();
    let query = link.split('"').next().unwrap().replace("&amp;", "&");
    let page = person.page(&format!("/console/policy?{query}"));
    for part in ["denied by no-secrets", "To allow the call", "allow-files_write", "startsWith"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_refused_call_is_found_as_refused_and_names_the_file_and_the_tool_of_the_new_rule() {
    let rule =
        "[[policy.rules]]\nname = \"no-programs\"\neffect = \"deny\"\ntools = [\"exec.run\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", rule);
    let served = ServerLaunchOptions::over(&workspace).served();
    served.ask(&call(1, "exec_run", json!({ "command": "ls" })));
    served.ask(&call(2, "files_read", json!({ "path": "missing.md" })));
    served.outcomes(2);
    let person = ConsoleClient::with_link(&served);
    let list = person.page("/console/calls?outcome=refused");
    let outcome = ">refused</span> <span class=\"hint\">unknown_tool<";
    assert!(list.contains(outcome) && !list.contains("missing.md"), "{list}");
    for suggestion in ["<option value=\"refused\">", "<option value=\"not_found\">"] {
        assert!(list.contains(suggestion), "{suggestion}: {list}");
    }
    let page = person.page("/console/calls/1");
    let file = workspace.path("toolgate.toml").display().to_string();
    let tool = "every call of the tool <code>exec.run</code> by http:";
    for part in [outcome, &file, tool, "needs no trust", "tools = [&quot;exec.run&quot;]"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (reason, rest) = page.split_once("Audit seal").unwrap();
    assert!(reason.contains("Why the call was refused") && !rest.contains("<h2>"), "{page}");
    for link in ["/console/calls?caller=http\"", "/console/calls?tool=exec%5Frun\""] {
        assert!(page.contains(link), "{link}: {page}");
    }
}

#[test]
fn a_tool_that_failed_for_different_reasons_shows_their_number() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for id in 1..4 {
        served.ask(&call(id, "files_read", json!({ "path": format!("page{id}.md") })));
    }
    served.outcomes(3);
    let overview = ConsoleClient::with_link(&served).page("/");
    assert!(overview.contains("3 different errors, for example <a"), "{overview}");
    assert!(overview.contains("Calls in each hour (UTC), at most "), "{overview}");
}

#[test]
fn a_call_that_a_setting_refused_shows_the_lines_that_allow_it() {
    let settings = "[tools]\ndeny = [\"files.write\", \"files.move\"]\n";
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", settings)).served();
    served.ask(&call(1, "files_write", json!({ "path": "a.txt", "content": "x" })));
    served.outcomes(1);
    let refused = ConsoleClient::with_link(&served).page("/console/calls/1");
    for part in ["tools.deny: files.write", "[tools]", "deny = [&quot;files.move&quot;]"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

#[test]
fn the_changes_of_a_caller_to_a_file_are_listed_without_its_reads() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_write", json!({ "path": "plan.txt", "content": "x" })));
    served.ask(&call(2, "files_read", json!({ "path": "plan.txt" })));
    served.ask(&call(3, "files_write", json!({ "path": "other.txt", "content": "x" })));
    served.outcomes(3);
    let person = ConsoleClient::with_link(&served);
    let all = person.page("/console/calls");
    assert!(all.contains("href=\"/console/calls?caller=http\""), "{all}");
    let page = person.page("/console/calls?caller=http&subject=plan.txt&changes=1");
    assert!(page.contains(">files_write<") && page.contains(">changes<"), "{page}");
    assert!(!page.contains(">files_read<") && !page.contains(">other.txt<"), "{page}");
    let one = person.page("/console/calls/1");
    let related = "/console/calls?caller=http&amp;subject=plan%2Etxt";
    assert!(one.contains(related), "{one}");
}

#[test]
fn every_page_of_the_navigation_is_served_and_small() {
    let settings = format!("[server]\nconnections_max = 500\n{}", keys_of(&["ada"]));
    let settings = settings.replace("name = \"ada\"", "roles = [\"admin\"]\nname = \"ada\"");
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    let person = ConsoleClient::with_key(&served, "ada-key");
    let overview = person.page("/");
    let nav = overview.split("<nav").nth(1).unwrap().split("</nav>").next().unwrap();
    let paths: Vec<_> =
        nav.split("href=\"").skip(1).map(|it| it.split('"').next().unwrap()).collect();
    assert!(paths.len() >= 9, "{paths:?}");
    for path in paths.iter().filter(|path| path.starts_with('/')) {
        let page = person.page(path);
        assert!(page.contains("aria-current"), "{path}: {page}");
        assert!(page.len() < 100_000, "{path}: {} bytes", page.len());
    }
    let settings = person.page("/console/settings");
    assert!(settings.contains("server.connections_max"), "{settings}");
    let hex = keys_of(&["ada"]).split("sha256 = \"").nth(1).unwrap()[..64].to_owned();
    assert!(!settings.contains(&hex), "{settings}");
    let policy =
        person.page("/console/policy?caller=ada&tool=files.read&input=%7B%22path%22%3A%22a%22%7D");
    assert!(policy.contains("allowed by"), "{policy}");
}

#[test]
fn a_page_hears_of_calls() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let person = ConsoleClient::with_link(&served);
    let mut connection = served.connect();
    connection
        .post(&TestHttpRequest::bare("GET", "/console/events").with("cookie", &person.cookie));
    let head = connection.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let mut heard = String::new();
    wait_until("a change is sent", || {
        served.ask(&call(1, "files_exists", json!({ "path": "x" })));
        heard += &String::from_utf8(connection.chunk().unwrap()).unwrap();
        heard.contains("data: calls") || heard.contains("data:calls")
    });
    assert!(heard.contains("change"), "{heard}");
}

#[test]
fn without_an_audit_log_the_pages_say_so() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).set("audit_to", "off").served();
    let person = ConsoleClient::with_link(&served);
    for page in ["/", "/console/calls", "/console/callers"] {
        assert!(person.page(page).contains("audit.to"), "{page}");
    }
}

#[test]
fn an_unreachable_upstream_is_shown_with_its_error() {
    let settings = "[upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\nprivate_network = true\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    let person = ConsoleClient::with_link(&served);
    let untried = person.page("/console/upstreams");
    assert!(
        untried.contains("toolgate has sent no request, because no caller has needed"),
        "{untried}"
    );
    // An upstream is connected when a caller first needs it.
    served.ask(&call(1, "far_x", json!({})));
    wait_until("the failure is shown", || {
        let page = person.page("/console/upstreams");
        page.contains("unavailable") && page.contains("<time")
    });
    let overview = person.page("/");
    assert!(overview.contains("Unavailable upstreams"), "{overview}");
    assert!(overview.contains("far</a> since <time"), "{overview}");
    let since = " UTC</time> (less than a minute ago; first failed attempt to reach it)";
    assert!(overview.contains(since), "{overview}");
    let one = person.page("/console/upstreams/far");
    assert!(one.contains(">unavailable<") && one.contains("<time"), "{one}");
    assert!(one.contains("/console/calls?failed=1&amp;hours=1&amp;tool=far"), "{one}");
    let restarted = person.post("/console/upstreams/far/restart", &[]);
    assert_eq!(restarted.status, 303, "{restarted:?}");
}

#[test]
fn the_settings_page_shows_which_changes_of_the_file_are_not_in_force() {
    let settings = "[limits]\ncalls = 500\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    let person = ConsoleClient::with_link(&served);
    let page = person.page("/console/settings");
    assert!(page.contains("A reload would change nothing"), "{page}");
    let file = workspace.path("toolgate.toml");
    fs::write(&file, format!("{settings}[jobs]\nto = \"off\"\n")).unwrap();
    let page = person.page("/console/settings");
    assert!(page.contains("jobs.to") && page.contains("after a restart"), "{page}");
    fs::write(&file, "[limits]\ncalls = \"many\"\n").unwrap();
    let page = person.page("/console/settings");
    assert!(page.contains("cannot be applied"), "{page}");
}

#[test]
fn the_pages_of_a_server_with_a_thousand_tools_are_small() {
    let about = "Says a number. ".repeat(40);
    let command = |at| {
        format!(
            "[command.\"a.t{at:03}\"]\nabout = \"{about}\"\nprogram = \"echo\"\nargv = [\"{at}\"]\n"
        )
    };
    let settings: String = (0..1000).map(command).collect();
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", settings)).served();
    let person = ConsoleClient::with_link(&served);
    let files = ["/console/style.css", "/console/script.js", "/console/icon.svg"];
    let file_bytes: usize = files.iter().map(|file| person.page(file).len()).sum();
    for page in ["/", "/console/tools", "/console/tools?q=a.t", "/console/settings"] {
        let bytes = person.page(page).len() + file_bytes;
        assert!(bytes <= 100_000, "{page}: {bytes} bytes");
    }
    let first = person.page("/console/tools");
    assert!(first.contains("/console/tools?skip=100&amp;q="), "{first}");
    assert!(person.page("/console/tools?skip=900&q=a.t").contains(">a_t999<"));
    assert!(person.page("/console/tools?q=t999").contains(">a_t999<"));
}
