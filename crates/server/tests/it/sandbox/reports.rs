//! What is told of a sandbox that is not whole: nothing is pretended.

use std::fs;

use super::*;

/// A shell that takes something away from what it then becomes.
const WITHOUT_GROUPS: &[&str] = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    "for d in /sys/fs/cgroup/*; do mount --bind -o ro $d $d && mount -o remount,bind,ro $d; done 2>/dev/null; exec \"$@\"",
    "sh",
];

#[test]
fn a_result_names_the_profile_or_what_is_missing() {
    let workspace = Workspace::new();
    let mut off = confined(&workspace, "off");
    assert_eq!(run(&mut off, json!({ "command": "true" })).value["sandbox"], "off");
    let mut client = confined(&workspace, "workspace");
    let told = run(&mut client, json!({ "command": "true" })).value["sandbox"].clone();
    let is_whole = told == "workspace";
    let is_partly = told["profile"] == "workspace" && told["missing"][0]["why"].is_string();
    assert!(is_whole || is_partly, "{told}");
    eprintln!("here: {told}");
}

#[test]
fn what_the_system_lacks_is_told_and_refused_where_all_is_required() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TRIED: only root can take groups away");
        return;
    }
    let workspace = Workspace::new();
    let launch =
        || Launch::over(&workspace).set("sandbox_profile", "workspace").through(WITHOUT_GROUPS);
    let mut client = Client::stdio(launch(), MODERN);
    let answer = client.call("exec_run", json!({ "command": "true" }));
    let told = &answer["result"]["structuredContent"];
    assert_eq!(told["exit_code"], 0, "{answer}");
    let missing = told["sandbox"]["missing"].as_array().unwrap();
    assert!(missing.iter().any(|it| it["layer"] == "groups"), "{told}");
    // Few have them who are not root: no text says so each time.
    assert!(!answer["result"]["content"].to_string().contains("lacks"), "{answer}");
    let mut strict = Client::stdio(launch().set("sandbox_require", "strict"), MODERN);
    let answer = strict.call("exec_run", json!({ "command": "touch", "args": ["ran"] }));
    assert!(answer.to_string().contains("`groups` is missing"), "{answer}");
    assert!(!workspace.path("ran").exists());
}

#[test]
fn the_server_itself_is_held_by_landlock_but_for_what_starts_its_programs() {
    let workspace = Workspace::new();
    let threads = |client: &Client| {
        let all = fs::read_dir(format!("/proc/{}/task", client.server().pid)).unwrap();
        let all = all.map(|task| {
            let read = |name: &str| fs::read_to_string(task.as_ref().unwrap().path().join(name));
            let is_held = read("status").unwrap().contains("NoNewPrivs:\t1");
            (read("comm").unwrap().trim().to_owned(), is_held)
        });
        all.collect::<Vec<_>>()
    };
    let mut client = confined(&workspace, "workspace");
    run(&mut client, json!({ "command": "true" }));
    // It says so where it is not.
    if !threads(&client).iter().any(|(_, is_held)| *is_held)
        && client.server().log().contains("not confined: this kernel")
    {
        return eprintln!("NOT TRIED: this kernel has no Landlock");
    }
    for (name, is_held) in threads(&client) {
        assert_eq!(is_held, name != "toolgate-spawn", "{name}");
    }
    let open = Launch::over(&workspace).set("server_confined", false);
    let client = Client::stdio(open, MODERN);
    assert!(threads(&client).iter().all(|(_, is_held)| !is_held));
    wait_until("it says so", || client.server().log().contains("server.confined"));
}
