//! Tests of the console page of recent calls: the changes, output and arguments that the server
//! keeps in memory.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::console::ConsoleClient;
use crate::support::{ServerLaunchOptions, TempWorkspace, call, wait_until};

/// Content of `src/config.py` before the edits of the tests.
const CONFIG: &str = "TIMEOUT = 10\nRETRIES = 3\nDEBUG = False\n";

fn edit(id: u64, old: &str, new: &str) -> Value {
    call(
        id,
        "files_edit",
        json!({ "path": "src/config.py", "edits": [{ "old": old, "new": new }] }),
    )
}

#[test]
fn the_changes_of_a_caller_to_a_file_are_shown_in_the_list_and_in_full() {
    let workspace = TempWorkspace::new().file("src/config.py", CONFIG);
    let served = ServerLaunchOptions::over(&workspace).served();
    served.ask(&edit(1, "TIMEOUT = 10", "TIMEOUT = 30"));
    served.ask(&call(2, "files_read", json!({ "path": "src/config.py" })));
    served.ask(&edit(3, "DEBUG = False\n", "DEBUG = True\nTRACE = True\n"));
    served.outcomes(3);
    let person = ConsoleClient::with_link(&served);
    let list = person.page("/console/calls?caller=http&subject=src/config.py&changes=1");
    for link in ["/console/calls/1\">+1 −1 lines<", "/console/calls/3\">+2 −1 lines<"] {
        assert!(list.contains(link), "{link}: {list}");
    }
    let first = person.page("/console/calls/1");
    for part in ["Changes: +1 −1 lines", "-TIMEOUT = 10\n+TIMEOUT = 30\n", "&quot;old&quot;"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!first.contains("audit.arguments"), "{first}");
    let read = person.page("/console/calls/2");
    assert!(!read.contains("TIMEOUT"), "{read}");
    assert!(read.contains("keeps only its last 500 calls"), "{read}");
}

#[test]
fn the_output_of_a_failed_program_is_shown() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let script = "echo half done; echo it is broken >&2; exit 3";
    let run = json!({ "command": "sh", "args": ["-c", script] });
    served.ask(&call(1, "exec_run", run));
    served.outcomes(1);
    let page = ConsoleClient::with_link(&served).page("/console/calls/1");
    for part in ["The call failed:", "exit code 3", "half done", "it is broken", "-c"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_failed_read_shows_its_arguments_and_its_error() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_read", json!({ "path": "missing.md", "start_line": 77 })));
    served.outcomes(1);
    let page = ConsoleClient::with_link(&served).page("/console/calls/1");
    for part in ["`missing.md` does not exist", "start_line", ">77<"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn secrets_in_arguments_and_results_are_not_kept() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let key = format!("ghp_{}", "a1B2".repeat(9));
    served.ask(&call(1, "files_write", json!({ "path": "a.txt", "content": key })));
    let run = json!({ "command": "echo", "args": ["--password", "hunter22222", key] });
    served.ask(&call(2, "exec_run", run));
    served.outcomes(2);
    let person = ConsoleClient::with_link(&served);
    for seq in [1, 2] {
        let page = person.page(&format!("/console/calls/{seq}"));
        assert!(page.contains("[redacted]"), "{page}");
        assert!(!page.contains(&key) && !page.contains("hunter22222"), "{page}");
    }
}

#[test]
fn after_a_restart_the_page_says_that_the_changes_are_no_longer_kept() {
    let workspace = TempWorkspace::new().file("src/config.py", CONFIG);
    let state = TempDir::new().unwrap();
    let launch = || {
        let launch = ServerLaunchOptions::over(&workspace);
        let launch = launch.set("audit_to", state.path().join("audit.jsonl").display());
        launch.set("audit_key", state.path().join("audit.key").display()).served()
    };
    let served = launch();
    served.ask(&edit(1, "TIMEOUT = 10", "TIMEOUT = 30"));
    let person = ConsoleClient::with_link(&served);
    wait_until("the change is shown", || {
        let page = person.get("/console/calls/1");
        page.status == 200 && page.text().contains("+TIMEOUT = 30")
    });
    drop(served);
    let served = launch();
    let page = ConsoleClient::with_link(&served).page("/console/calls/1");
    for part in ["another server process ran the call", "audit.arguments = &quot;redacted&quot;"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("TIMEOUT"), "{page}");
}

#[test]
fn with_recorded_arguments_off_nothing_is_kept() {
    let workspace = TempWorkspace::new().file("src/config.py", CONFIG);
    let served = ServerLaunchOptions::over(&workspace).set("audit_arguments", "none").served();
    served.ask(&edit(1, "TIMEOUT = 10", "TIMEOUT = 30"));
    served.outcomes(1);
    let page = ConsoleClient::with_link(&served).page("/console/calls/1");
    assert!(page.contains("`audit.arguments` is `none`"), "{page}");
    assert!(!page.contains("TIMEOUT"), "{page}");
}
