//! Tests of the server's reports that its sandbox is incomplete.

use std::fs;

use super::*;

/// Command prefix that runs another command without writable control groups.
const WITHOUT_GROUPS: &[&str] = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    "for d in /sys/fs/cgroup/*; do mount --bind -o ro $d $d && mount -o remount,bind,ro $d; done 2>/dev/null; exec \"$@\"",
    "sh",
];

#[test]
fn a_result_names_the_profile_or_the_missing_layers() {
    let workspace = TempWorkspace::new();
    let mut off = confined_client(&workspace, "off");
    assert_eq!(run(&mut off, json!({ "command": "true" })).value["sandbox"], "off");
    let mut client = confined_client(&workspace, "workspace");
    let sandbox = run(&mut client, json!({ "command": "true" })).value["sandbox"].clone();
    let is_whole = sandbox == "workspace";
    let is_partial = sandbox["profile"] == "workspace" && sandbox["missing"][0]["why"].is_string();
    assert!(is_whole || is_partial, "{sandbox}");
    eprintln!("here: {sandbox}");
}

#[test]
fn a_missing_layer_is_reported_or_refused_if_all_are_required() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TRIED: only root can take groups away");
        return;
    }
    let workspace = TempWorkspace::new();
    let launch = || {
        ServerLaunchOptions::over(&workspace)
            .set("sandbox_profile", "workspace")
            .through(WITHOUT_GROUPS)
    };
    let mut client = TestMcpClient::stdio(launch(), MODERN);
    let answer = client.call("exec_run", json!({ "command": "true" }));
    let result = &answer["result"]["structuredContent"];
    assert_eq!(result["exit_code"], 0, "{answer}");
    let missing = result["sandbox"]["missing"].as_array().unwrap();
    assert!(missing.iter().any(|it| it["layer"] == "groups"), "{result}");
    // Without root, control groups are usually missing, so the text does not mention them.
    assert!(!answer["result"]["content"].to_string().contains("lacks"), "{answer}");
    let mut strict = TestMcpClient::stdio(launch().set("sandbox_require", "strict"), MODERN);
    let answer = strict.call("exec_run", json!({ "command": "touch", "args": ["ran"] }));
    assert!(answer.to_string().contains("`groups` is missing"), "{answer}");
    assert!(!workspace.path("ran").exists());
}

#[test]
fn every_server_thread_is_confined_except_those_that_start_and_test_programs() {
    let workspace = TempWorkspace::new();
    let threads = |client: &TestMcpClient| {
        let all = fs::read_dir(format!("/proc/{}/task", client.server().pid)).unwrap();
        let all = all.map(|task| {
            let read = |name: &str| fs::read_to_string(task.as_ref().unwrap().path().join(name));
            let is_confined = read("status").unwrap().contains("NoNewPrivs:\t1");
            (read("comm").unwrap().trim().to_owned(), is_confined)
        });
        all.collect::<Vec<_>>()
    };
    let mut client = confined_client(&workspace, "workspace");
    run(&mut client, json!({ "command": "true" }));
    // Without Landlock, the log says so.
    if !threads(&client).iter().any(|(_, is_confined)| *is_confined)
        && client.server().log().contains("not confined: this kernel")
    {
        return eprintln!("NOT TRIED: this kernel has no Landlock");
    }
    for (name, is_confined) in threads(&client) {
        let is_exempt = ["toolgate-spawn", "toolgate-look"].contains(&&*name);
        assert_eq!(is_confined, !is_exempt, "{name}");
    }
    let open = ServerLaunchOptions::over(&workspace).set("server_confined", false);
    let client = TestMcpClient::stdio(open, MODERN);
    assert!(threads(&client).iter().all(|(_, is_confined)| !is_confined));
    wait_until("it is logged", || client.server().log().contains("server.confined"));
}
