//! Declared commands that tests run as jobs, and functions to observe and control them.

use super::{TempWorkspace, wait_until};

/// Settings that declare the commands of job tests. Each command writes its `name` to the file
/// `ran` when it begins. Some commands wait until the file `go` exists.
pub(crate) const COMMANDS: &str = r#"
[command."work.wait"]
about = "Waits."
program = "sh"
argv = ["-c", "echo $0 >> ran; echo began; until [ -e go ]; do sleep 0.02; done; echo went", "{name}"]
args = { name = "string!" }

[command."work.again"]
about = "Waits, and may be run twice."
program = "sh"
argv = ["-c", "echo $0 >> ran; echo began; until [ -e go ]; do sleep 0.02; done; echo went", "{name}"]
args = { name = "string!" }
idempotent = true

[command."work.alone"]
about = "Waits, one at a time, and notes it when it was not alone."
program = "sh"
argv = ["-c", """
    mkdir held || echo $0 >> together
    echo $0 >> ran; until [ -e go ]; do sleep 0.02; done; sleep 0.05; rmdir held""", "{name}"]
args = { name = "string!" }
at_once = 1

[command."work.quick"]
about = "Ends at once."
program = "sh"
argv = ["-c", "echo $0 >> ran", "{name}"]
args = { name = "string!" }

[command."work.endless"]
about = "Does not end."
program = "sleep"
argv = ["{name}"]
args = { name = "string!" }
deadline_ms = 300

[command."work.missing"]
about = "Runs what is not there."
program = "no-such-program-7f3a"
argv = []

[command."draw.one"]
about = "Leaves one file."
program = "sh"
argv = ["-c", "mkdir -p out; printf '%s' drawn > 'out/plot.png'; echo done"]
artefacts = ["out/plot.png"]

[command."draw.many"]
about = "Leaves files, some of one name."
program = "sh"
argv = ["-c", """
    mkdir -p out/a out/b; printf one > out/a/page.txt; printf another > out/b/page.txt
    printf '\\377\\000' > 'out/Größe 1.bin'"""]
artefacts = ["out/**"]

[command."tell.steps"]
about = "Tells how far it is, on both streams, and waits for the file `go` half way."
program = "sh"
argv = ["-c", """
    echo $0 >> ran; echo began; echo 'step 1/4' >&2
    until [ -e go ]; do sleep 0.02; done; echo 'step 3/4' >&2; echo last; exit $1""", "{name}", "{code}"]
args = { name = "string!", code = "string=0" }
progress = 'step (\d+)/(\d+)'
"#;

/// Creates the file `go`, so that waiting commands continue.
pub(crate) fn let_continue(workspace: &TempWorkspace) {
    workspace.put("go", "");
}

/// Waits until the command `name` has started.
#[track_caller]
pub(crate) fn wait_until_began(workspace: &TempWorkspace, name: &str) {
    wait_until("the command starts", || {
        started_commands(workspace).iter().any(|result| result == name)
    });
}

/// Returns the names of the started commands, in order.
pub(crate) fn started_commands(workspace: &TempWorkspace) -> Vec<String> {
    let names = if workspace.path("ran").exists() { workspace.read("ran") } else { String::new() };
    names.lines().map(str::to_owned).collect()
}

impl TempWorkspace {
    /// Returns a workspace whose settings declare the commands in [`COMMANDS`].
    pub(crate) fn with_commands() -> Self {
        Self::new().file("toolgate.toml", COMMANDS)
    }
}
