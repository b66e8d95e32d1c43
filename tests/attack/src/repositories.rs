//! Prepares hostile git repositories, which attack a program that reads them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::attempt::AttackAttempt;
use super::server::sh;

/// Creates a repository with two commits, a changed file and a second branch.
fn make_repository(folder: &Path) -> anyhow::Result<()> {
    fs::write(folder.join("a.txt"), "first\n")?;
    let commit = "git -c user.name=t -c user.email=t@example.invalid commit -q";
    sh(
        folder,
        &format!(
            "git init -q -b main . && git config user.name t && \
             git config user.email t@example.invalid && git add a.txt && {commit} -m first && \
             git branch other && echo second >> a.txt && {commit} -a -m second && \
             echo third >> a.txt"
        ),
    )?;
    Ok(())
}

/// Prepares the hostile repository of an attack case.
pub(super) fn prepare(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    let ws = attempt.folders.ws.clone();
    let evil = attempt.folders.evil.clone();
    if attempt.case.id == "G24" {
        return make_repository(&attempt.folders.parent);
    }
    make_repository(&ws)?;
    let touch = format!("touch {}/w", evil.display());
    let trap = write_trap(&ws, &touch)?;
    let set_config = |name: &str, value: &str| sh(&ws, &format!("git config {name} '{value}'"));
    let set_attribute =
        |line: &str| fs::write(ws.join(".gitattributes"), format!("*.txt {line}\n"));
    match attempt.case.id.as_str() {
        "G01" => _ = set_config("core.fsmonitor", &trap)?,
        "G02" => _ = set_config("diff.external", &trap)?,
        "G04" => {
            set_config("filter.x.clean", &trap)?;
            set_config("filter.x.smudge", &trap)?;
            set_config("filter.x.process", &trap)?;
            set_attribute("filter=x")?;
        }
        "G05" => {
            set_config("diff.x.textconv", &trap)?;
            set_attribute("diff=x")?;
        }
        "G06" => {
            set_config("diff.x.command", &trap)?;
            set_attribute("diff=x")?;
        }
        "G09" => {
            set_config("gpg.program", &trap)?;
            set_config("log.showSignature", "true")?;
            set_config("commit.gpgSign", "true")?;
        }
        "G11" => {
            let file = evil.join("included");
            fs::write(
                &file,
                format!("[core]\n\tfsmonitor = {trap}\n[x]\n\ty = {}\n", attempt.folders.canary),
            )?;
            set_config("include.path", &file.display().to_string())?;
            set_config("includeIf.gitdir:**.path", &file.display().to_string())?;
        }
        "G14" => _ = sh(&ws, "cp .git/refs/heads/main '.git/refs/heads/--output=w'")?,
        "G21" => {
            sh(
                &evil,
                "git init -q . && git add secret && git -c user.name=t -c user.email=t@x commit -q -m canary",
            )?;
            symlink(&evil, ws.join("abs_dir"))?;
        }
        "G27" => {
            let line = format!(
                "git config core.symlinks true; git checkout -q -f main; ln -s {} d && git add d && \
                 git commit -q -m link && git checkout -q -b evil && git rm -q --cached d && rm d && \
                 mkdir d && echo planted > d/x && git add d/x && git commit -q -m file && \
                 git checkout -q main",
                evil.display()
            );
            sh(&ws, &line)?;
        }
        "G29" => {
            sh(
                &evil,
                "git init -q . && git add secret s.py && git -c user.name=t -c user.email=t@x commit -q -m initial",
            )?;
            let canary = attempt.folders.canary.clone();
            sh(
                &evil,
                &format!(
                    "git -c user.name={canary} -c user.email=t@x commit -q --allow-empty -m '{canary}' && git branch {canary}"
                ),
            )?;
            attempt.launch.env("GIT_DIR", evil.join(".git").display().to_string());
            attempt.launch.env("GIT_WORK_TREE", evil.display().to_string());
            attempt.launch.env("GIT_CONFIG_COUNT", "1");
            attempt.launch.env("GIT_CONFIG_KEY_0", "core.fsmonitor");
            attempt.launch.env("GIT_CONFIG_VALUE_0", trap.clone());
            attempt.launch.env("GIT_SSH_COMMAND", trap);
        }
        "G31" => {
            for hook in ["pre-commit", "commit-msg", "post-commit", "prepare-commit-msg"] {
                let file = ws.join(".git/hooks").join(hook);
                fs::copy(&trap, &file)?;
                fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
            }
            sh(&ws, "git add a.txt")?;
        }
        "G32" => {
            let line = "0123456789 0123456789 0123456789 0123456789\n";
            fs::write(ws.join("big.txt"), "small\n")?;
            sh(&ws, "git add big.txt && git commit -q -m big")?;
            fs::write(ws.join("big.txt"), line.repeat(100 * 1_000_000 / line.len()))?;
            if attempt.variant.label == "git.show" {
                sh(&ws, "git commit -q -a -m bigger")?;
            }
        }
        "G33" => {
            let line = "git mv a.txt $'\\e]0;pwn\\a' && \
                git -c user.name=$'A\\e[31mred\\u202e' commit -q -m $'s\\e[2Jubject\\u202etxt' && \
                echo a > a.txt && git add a.txt && \
                git -c user.name=$'A\\e[31mred\\u202e' commit -q -m $'s\\e[2Jubject\\u202etxt' && \
                touch $'new\\e[31m\\u202e.txt' && git branch $'b\\u202eranch'";
            sh(&ws, line)?;
        }
        _ => {}
    }
    let trigger = match attempt.case.id.as_str() {
        "G01" => "git status",
        "G02" | "G04" | "G06" => "git diff",
        "G05" => "git blame a.txt",
        "G09" => "git commit -q --allow-empty -m x",
        "G31" => "git commit -q -m x",
        _ => return Ok(()),
    };
    check_trap(attempt, trigger)
}

/// Checks that plain git would run the trap: runs `trigger` in a copy of the repository. Otherwise,
/// the case would prove nothing.
fn check_trap(attempt: &mut AttackAttempt, trigger: &str) -> anyhow::Result<()> {
    let copy = attempt.folders.base.join("copy");
    let line = format!(
        "cp -a {} {} && cd {1} && {trigger} || true",
        attempt.folders.ws.display(),
        copy.display()
    );
    sh(&attempt.folders.base, &line)?;
    let trace = attempt.folders.evil.join("w");
    if fs::remove_file(&trace).is_err() {
        attempt.failures.push(format!("the harness: `{trigger}` does not run the trap"));
    }
    fs::remove_dir_all(copy)?;
    Ok(())
}

/// Writes an executable file that runs `touch`, and returns its path.
fn write_trap(ws: &Path, touch: &str) -> anyhow::Result<String> {
    // A checkout would remove it from the work tree.
    let file = ws.join(".git/trap.sh");
    fs::write(&file, format!("#!/bin/sh\n{touch}\ncat 2>/dev/null\n"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    Ok(file.display().to_string())
}
