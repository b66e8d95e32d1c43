//! Repositories with something wrong about them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::play::Play;
use super::server::sh;

/// A repository with a commit, a changed file, a new file and a second branch.
pub(super) fn repository(folder: &Path) -> anyhow::Result<()> {
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

/// The repository that a case of git is about.
pub(super) fn prepare(play: &mut Play) -> anyhow::Result<()> {
    let ws = play.stage.ws.clone();
    let evil = play.stage.evil.clone();
    if play.case.id == "G24" {
        return repository(&play.stage.parent);
    }
    repository(&ws)?;
    let touch = format!("touch {}/w", evil.display());
    let trap = trap(&ws, &touch)?;
    let config = |name: &str, value: &str| sh(&ws, &format!("git config {name} '{value}'"));
    let attribute = |line: &str| fs::write(ws.join(".gitattributes"), format!("*.txt {line}\n"));
    match play.case.id.as_str() {
        "G01" => _ = config("core.fsmonitor", &trap)?,
        "G02" => _ = config("diff.external", &trap)?,
        "G04" => {
            config("filter.x.clean", &trap)?;
            config("filter.x.smudge", &trap)?;
            config("filter.x.process", &trap)?;
            attribute("filter=x")?;
        }
        "G05" => {
            config("diff.x.textconv", &trap)?;
            attribute("diff=x")?;
        }
        "G06" => {
            config("diff.x.command", &trap)?;
            attribute("diff=x")?;
        }
        "G09" => {
            config("gpg.program", &trap)?;
            config("log.showSignature", "true")?;
            config("commit.gpgSign", "true")?;
        }
        "G11" => {
            let file = evil.join("included");
            fs::write(
                &file,
                format!("[core]\n\tfsmonitor = {trap}\n[x]\n\ty = {}\n", play.stage.canary),
            )?;
            config("include.path", &file.display().to_string())?;
            config("includeIf.gitdir:**.path", &file.display().to_string())?;
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
            let canary = play.stage.canary.clone();
            sh(
                &evil,
                &format!(
                    "git -c user.name={canary} -c user.email=t@x commit -q --allow-empty -m '{canary}' && git branch {canary}"
                ),
            )?;
            play.launch.env("GIT_DIR", evil.join(".git").display().to_string());
            play.launch.env("GIT_WORK_TREE", evil.display().to_string());
            play.launch.env("GIT_CONFIG_COUNT", "1");
            play.launch.env("GIT_CONFIG_KEY_0", "core.fsmonitor");
            play.launch.env("GIT_CONFIG_VALUE_0", trap.clone());
            play.launch.env("GIT_SSH_COMMAND", trap);
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
            if play.form.label == "git.show" {
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
    let sprung_by = match play.case.id.as_str() {
        "G01" => "git status",
        "G02" | "G04" | "G06" => "git diff",
        "G05" => "git blame a.txt",
        "G09" => "git commit -q --allow-empty -m x",
        "G31" => "git commit -q -m x",
        _ => return Ok(()),
    };
    springs(play, sprung_by)
}

/// Sees that the trap is one: plain git springs it, in a copy.
fn springs(play: &mut Play, by: &str) -> anyhow::Result<()> {
    let copy = play.stage.base.join("copy");
    let line =
        format!("cp -a {} {} && cd {1} && {by} || true", play.stage.ws.display(), copy.display());
    sh(&play.stage.base, &line)?;
    let trace = play.stage.evil.join("w");
    if fs::remove_file(&trace).is_err() {
        play.wrong.push(format!("the harness: `{by}` does not spring the trap"));
    }
    fs::remove_dir_all(copy)?;
    Ok(())
}

/// A program that leaves a trace where it must not, and says so where it may.
fn trap(ws: &Path, touch: &str) -> anyhow::Result<String> {
    // Beside the repository's own files, which a checkout would remove.
    let file = ws.join(".git/trap.sh");
    fs::write(&file, format!("#!/bin/sh\n{touch}\ncat 2>/dev/null\n"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    Ok(file.display().to_string())
}
