//! Tests of servers that run beside a newer toolgate, which has migrated the database tables of
//! their fleet.

use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::search_engines::server::PostgresServerProcess as Database;
use crate::shared_jobs::{launch, wait_for_state};
use crate::support::{
    TempWorkspace, binary, call, path, refusal, started_commands, structured, trust_config,
};

/// SQL that expands the tables as a newer toolgate would. The tested version can still use these
/// tables.
const EXPAND: &str = "alter table toolgate_fleet.jobs add column newer text not null default 'x'; \
    alter table toolgate_fleet.servers add column newer int; \
    create table toolgate_fleet.newer (job bytea primary key); \
    update toolgate_fleet.schema_version set number = 99";
/// SQL that marks the tables as unusable for the tested version of toolgate.
const CONTRACT: &str = "update toolgate_fleet.schema_version set min_version = 99";

#[test]
fn servers_before_and_after_a_compatible_migration_run_each_others_jobs() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let front = launch(&workspace, &database).arg("--no-jobs").served();
    let before = front.start_job("work-quick", json!({ "name": "before" }));
    let worker = launch(&workspace, &database).worker();
    wait_for_state(&front, &before, "succeeded");
    database.run(EXPAND);
    let after = front.start_job("work-quick", json!({ "name": "after" }));
    wait_for_state(&front, &after, "succeeded");
    // A server that starts now finds the newer tables.
    let newer = launch(&workspace, &database).arg("--no-jobs").served();
    let last = newer.start_job("work-quick", json!({ "name": "last" }));
    for server in [&newer, &front] {
        for id in [&before, &after, &last] {
            wait_for_state(server, id, "succeeded");
        }
    }
    assert_eq!(worker.outcomes(3), ["ok"; 3]);
    assert_eq!(started_commands(&workspace), ["before", "after", "last"]);
    let version = database.run("select number from toolgate_fleet.schema_version");
    assert_eq!(version, "99", "a server changed the version of newer tables");
}

#[test]
fn a_server_refuses_jobs_in_tables_that_only_a_newer_toolgate_can_use() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    workspace.put("a.txt", "plain");
    let older = launch(&workspace, &database).served();
    let id = older.start_job("work-quick", json!({ "name": "before" }));
    wait_for_state(&older, &id, "succeeded");
    database.run(EXPAND);
    database.run(CONTRACT);
    let server = launch(&workspace, &database).served();
    let start = json!({ "tool": "work_quick", "arguments": { "name": "never" } });
    let refused = server.ask(&call(1, "jobs_start", start));
    assert!(refusal(&refused).contains("was set up by a newer toolgate"), "{refused}");
    let plain = server.ask(&call(2, "files_read", json!({ "path": "a.txt" })));
    assert_eq!(plain["result"]["isError"], false, "{plain}");
    assert_eq!(started_commands(&workspace), ["before"]);
    for command in ["status", "migrate"] {
        let (code, text) = fleet_command(&workspace, &database, command);
        assert_eq!(code, Some(2), "{command}: {text}");
        assert!(text.contains("was set up by a newer toolgate"), "{command}: {text}");
    }
    // A server that used the tables before they changed goes on.
    let listed = older.ask(&call(3, "jobs_list", json!({})));
    assert_eq!(structured(&listed)["jobs"][0]["job_id"], id.as_str(), "{listed}");
}

/// Runs `toolgate fleet NAME`, where NAME is the command `name`. Returns its exit code and its
/// standard error.
fn fleet_command(
    workspace: &TempWorkspace,
    database: &Database,
    name: &str,
) -> (Option<i32>, String) {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.args(["fleet", name, "--root"]).arg(workspace.root());
    command.env_clear().env("PATH", path()).env("HOME", home.path());
    command.env("TOOLGATE_AUDIT_TO", "off").env("TOOLGATE_FLEET_URL", database.url());
    trust_config(&mut command, workspace.root());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}
