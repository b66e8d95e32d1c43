//! The build tools of projects, and their command lines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pytest_options;
use super::runner::JavaScriptTestRunner;

/// The build tool of a project.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub(super) enum BuildTool {
    /// Cargo, for Rust projects.
    Cargo,
    /// The `go` command, for Go projects.
    Go,
    /// The `dotnet` command, for .NET projects.
    Dotnet,
    /// Gradle, for Java and other JVM languages.
    Gradle,
    /// Maven, for Java and other JVM languages.
    Maven,
    /// npm, for JavaScript projects.
    Npm,
    /// pnpm, for JavaScript projects.
    Pnpm,
    /// Yarn, for JavaScript projects.
    Yarn,
    /// pytest, for Python projects.
    Pytest,
    /// make, for projects in any language.
    Make,
}

/// An action on a project: to build, test or lint it, or to restore its dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProjectAction {
    Build,
    Test,
    Lint,
    Restore,
}

/// The properties of a project that determine its command lines.
#[derive(Debug, Default)]
pub(super) struct ProjectProperties {
    /// The scripts of a `package.json`, or the targets of a makefile.
    pub(super) scripts: Vec<String>,
    /// The error message, if `package.json` cannot be read.
    pub(super) unreadable: Option<String>,
    /// The command line of the script `test` in `package.json`, empty if there is none.
    pub(super) test_script: String,
    /// The names of the files in the project's folder.
    pub(super) names: Vec<String>,
    /// The texts of the Python settings files `pyproject.toml`, `setup.cfg`, `tox.ini` and
    /// `pytest.ini`, joined.
    pub(super) python: String,
    /// The path of the Python interpreter in the project's own virtual environment, if one exists.
    pub(super) interpreter: Option<String>,
    /// The path of the Python virtual environment in the server's variable `VIRTUAL_ENV`, if build
    /// tools receive this variable.
    pub(super) virtual_env: Option<String>,
}

impl BuildTool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cargo => "cargo",
            Self::Go => "go",
            Self::Dotnet => "dotnet",
            Self::Gradle => "gradle",
            Self::Maven => "maven",
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Yarn => "yarn",
            Self::Pytest => "pytest",
            Self::Make => "make",
        }
    }

    /// Returns the command line for the action `verb` on the project, or the reason why there is
    /// none.
    pub(super) fn argv(
        self,
        verb: ProjectAction,
        facts: &ProjectProperties,
    ) -> Result<Vec<String>, String> {
        let words = |line: &str| Ok(line.split(' ').map(str::to_owned).collect());
        let has = |name: &str| facts.names.iter().any(|known| known == name);
        let none = |reason: &str| Err(reason.to_owned());
        match (self, verb) {
            (Self::Cargo, ProjectAction::Build) => words("cargo build --message-format=json"),
            (Self::Cargo, ProjectAction::Test) => {
                words("cargo test --no-fail-fast --message-format=json")
            }
            (Self::Cargo, ProjectAction::Lint) => {
                words("cargo clippy --all-targets --message-format=json")
            }
            (Self::Cargo, ProjectAction::Restore) => words("cargo fetch"),
            (Self::Go, ProjectAction::Build) => words("go build ./..."),
            (Self::Go, ProjectAction::Test) => words("go test -json ./..."),
            (Self::Go, ProjectAction::Lint) => words("go vet ./..."),
            (Self::Go, ProjectAction::Restore) => words("go mod download"),
            (Self::Dotnet, ProjectAction::Build) => words("dotnet build --nologo"),
            (Self::Dotnet, ProjectAction::Test) => words("dotnet test --nologo"),
            (Self::Dotnet, ProjectAction::Lint) => words("dotnet format --verify-no-changes"),
            (Self::Dotnet, ProjectAction::Restore) => words("dotnet restore"),
            (Self::Gradle, verb) => {
                let program = if has("gradlew") { "./gradlew" } else { "gradle" };
                let task = match verb {
                    ProjectAction::Build => "assemble",
                    ProjectAction::Test => "test",
                    ProjectAction::Lint => "check",
                    ProjectAction::Restore => "dependencies",
                };
                words(&format!("{program} --console=plain {task}"))
            }
            (Self::Maven, verb) => {
                let program = if has("mvnw") { "./mvnw" } else { "mvn" };
                match verb {
                    ProjectAction::Build => words(&format!("{program} -B compile")),
                    ProjectAction::Test => words(&format!("{program} -B test")),
                    ProjectAction::Lint => none("Maven has no linter; run one with ci_run"),
                    ProjectAction::Restore => words(&format!("{program} -B dependency:go-offline")),
                }
            }
            (Self::Npm, ProjectAction::Restore) if has("package-lock.json") => words("npm ci"),
            (Self::Pnpm, ProjectAction::Restore) if has("pnpm-lock.yaml") => {
                words("pnpm install --frozen-lockfile")
            }
            (Self::Npm | Self::Pnpm | Self::Yarn, ProjectAction::Restore) => {
                words(&format!("{} install", self.name()))
            }
            (Self::Npm | Self::Pnpm | Self::Yarn, verb) => {
                let script = facts.find_script(self, verb, "package.json", "script")?;
                words(&format!("{} run {script}", self.name()))
            }
            (Self::Pytest, verb) => facts.python_command(verb),
            (Self::Make, ProjectAction::Restore) => none("make has no dependencies to fetch"),
            (Self::Make, ProjectAction::Build) if !facts.has_script("build") => words("make"),
            (Self::Make, ProjectAction::Test)
                if !facts.has_script("test") && facts.has_script("check") =>
            {
                words("make check")
            }
            (Self::Make, verb) => {
                let target = facts.find_script(self, verb, "makefile", "target")?;
                words(&format!("make {target}"))
            }
        }
    }

    /// Appends the call's `args` and the test `filter` to `argv`. The error explains why this
    /// project's tests cannot be selected by name.
    pub(super) fn with_call_args(
        self,
        mut argv: Vec<String>,
        mut args: Vec<String>,
        filter: Option<String>,
        facts: &ProjectProperties,
    ) -> Result<Vec<String>, String> {
        if let (Self::Cargo, Some(filter)) = (self, &filter) {
            // Arguments after `--` go to the test binary. The filter is for the test binary, too.
            let at = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
            if at == args.len() {
                args.push("--".to_owned());
            }
            args.insert(at + 1, filter.clone());
            argv.extend(args);
            return Ok(argv);
        }
        let filter_args: Vec<String> = match (self, filter) {
            (_, None) | (Self::Cargo, Some(_)) => Vec::new(),
            (Self::Go, Some(filter)) => vec![format!("-run={filter}")],
            (Self::Dotnet, Some(filter)) => vec!["--filter".into(), filter],
            (Self::Gradle, Some(filter)) => vec!["--tests".into(), filter],
            (Self::Maven, Some(filter)) => vec![format!("-Dtest={filter}")],
            // A test id, or a file with tests.
            (Self::Pytest, Some(filter))
                if filter.contains("::") || filter.contains('/') || filter.ends_with(".py") =>
            {
                vec![filter]
            }
            (Self::Pytest, Some(filter)) => vec!["-k".into(), filter],
            (Self::Npm | Self::Pnpm | Self::Yarn, Some(filter)) => {
                JavaScriptTestRunner::from_script(&facts.test_script)?.filter_args(filter)
            }
            (Self::Make, Some(_)) => {
                return Err(
                    "make cannot select tests by name; pass the makefile's own variables or \
                            targets in `args`"
                        .to_owned(),
                );
            }
        };
        if self == Self::Pytest {
            args = pytest_options::without_quiet_options(args);
        }
        // npm passes only arguments after `--` on to the script.
        let is_npm = matches!(self, Self::Npm) && argv.get(1).is_some_and(|word| word == "run");
        let is_separated = args.first().is_some_and(|first| first == "--");
        if is_npm && !(args.is_empty() && filter_args.is_empty()) {
            argv.push("--".to_owned());
            if is_separated {
                args.remove(0);
            }
        }
        argv.extend(filter_args);
        argv.extend(args);
        Ok(argv)
    }
}

impl ProjectAction {
    /// Returns the name of the action, which is also the usual name of a script for this action.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Test => "test",
            Self::Lint => "lint",
            Self::Restore => "restore",
        }
    }
}

impl ProjectProperties {
    fn has_script(&self, name: &str) -> bool {
        self.scripts.iter().any(|known| known == name)
    }

    fn find_script(
        &self,
        kind: BuildTool,
        verb: ProjectAction,
        file: &str,
        what: &str,
    ) -> Result<&str, String> {
        let name = verb.name();
        if self.has_script(name) {
            return Ok(name);
        }
        if let Some(why) = &self.unreadable {
            return Err(format!("the {file} is not JSON: {why}"));
        }
        let known: Vec<String> = self.scripts.iter().map(|name| format!("`{name}`")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let kind = kind.name();
        Err(format!(
            "the {file} has no {what} `{name}`; it has {known} (run one with ci_run: `{kind} …`)"
        ))
    }

    /// Returns a command that installs `what` with pip. Fails without a virtual environment,
    /// because the command would otherwise change the machine's own Python.
    fn pip_install(&self, what: &str) -> Result<Vec<String>, String> {
        let active = self.virtual_env.as_ref().map(|venv| format!("{venv}/bin/python"));
        let interpreter = self.interpreter.clone().or(active).ok_or(
            "it has no virtual environment, so the packages would be installed into the \
             machine's own Python; create one first: `python3 -m venv .venv` in its folder, e.g. \
             with ci_run",
        )?;
        let words = ["-m", "pip", "install"].into_iter().chain(what.split(' '));
        Ok([interpreter].into_iter().chain(words.map(str::to_owned)).collect())
    }

    fn python_command(&self, verb: ProjectAction) -> Result<Vec<String>, String> {
        let interpreter = self.interpreter.clone().unwrap_or_else(|| "python3".to_owned());
        let module = |line: &str| {
            let words = line.split(' ').map(str::to_owned);
            Ok([interpreter.clone(), "-m".to_owned()].into_iter().chain(words).collect())
        };
        let program = |line: &str| Ok(line.split(' ').map(str::to_owned).collect());
        let has = |name: &str| self.names.iter().any(|known| known == name);
        let configures = |text: &str| self.python.contains(text);
        match verb {
            ProjectAction::Build if configures("[build-system]") => module("build"),
            ProjectAction::Build => Err("there is nothing to build: no pyproject.toml has a \
                                `[build-system]`"
                .to_owned()),
            ProjectAction::Test => {
                // Overrides options of the project that leave out counts or ids, such as `-q`.
                let mut argv = module("pytest --color=no --tb=short -rfE --verbosity=0")?;
                if let Some(options) = pytest_options::options_with_output(&self.python) {
                    argv.splice(3..3, ["-o".to_owned(), format!("addopts={options}")]);
                }
                Ok(argv)
            }
            ProjectAction::Lint
                if has("ruff.toml") || has(".ruff.toml") || configures("[tool.ruff") =>
            {
                program("ruff check --output-format=concise")
            }
            ProjectAction::Lint if has(".flake8") || configures("[flake8]") => program("flake8"),
            ProjectAction::Lint => Err("no linter is configured (ruff or flake8)".to_owned()),
            ProjectAction::Restore if has("uv.lock") => program("uv sync"),
            ProjectAction::Restore if has("poetry.lock") => program("poetry install"),
            ProjectAction::Restore if has("requirements.txt") => {
                self.pip_install("-r requirements.txt")
            }
            ProjectAction::Restore if has("pyproject.toml") || has("setup.py") => {
                self.pip_install("-e .")
            }
            ProjectAction::Restore => {
                Err("there is no requirements.txt and no pyproject.toml".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(
        kind: BuildTool,
        verb: ProjectAction,
        facts: &ProjectProperties,
    ) -> Result<String, String> {
        kind.argv(verb, facts).map(|argv| argv.join(" "))
    }

    fn names(names: &[&str]) -> ProjectProperties {
        ProjectProperties {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            ..ProjectProperties::default()
        }
    }

    #[test]
    fn scripts_and_targets_of_a_project_are_run() {
        let facts = ProjectProperties {
            scripts: vec!["test".into(), "dev".into()],
            ..ProjectProperties::default()
        };
        assert_eq!(argv(BuildTool::Npm, ProjectAction::Test, &facts).unwrap(), "npm run test");
        let missing = argv(BuildTool::Yarn, ProjectAction::Build, &facts).unwrap_err();
        assert!(missing.contains("no script `build`; it has `test`, `dev`"), "{missing}");
        assert_eq!(argv(BuildTool::Make, ProjectAction::Build, &facts).unwrap(), "make");
        assert!(
            argv(BuildTool::Make, ProjectAction::Lint, &facts)
                .unwrap_err()
                .contains("no target `lint`")
        );
    }

    #[test]
    fn the_output_of_pytest_is_turned_on_only_if_a_project_turns_it_off() {
        for (python, expected) in [
            (
                "[pytest]\naddopts = -x -p no:terminal\n",
                "python3 -m pytest -o addopts=-x --color=no",
            ),
            (
                "[tool.pytest.ini_options]\naddopts = [\n  \"-p\", \"no:terminal\",\n  \"-x\",\n]\nminversion = \"8\"\n",
                "python3 -m pytest -o addopts=-x --color=no",
            ),
            ("[pytest]\naddopts = -q\n", "python3 -m pytest --color=no"),
            ("[pytest]\n# addopts = -p no:terminal\n", "python3 -m pytest --color=no"),
        ] {
            let facts =
                ProjectProperties { python: python.to_owned(), ..ProjectProperties::default() };
            let tested = argv(BuildTool::Pytest, ProjectAction::Test, &facts).unwrap();
            assert!(tested.starts_with(expected), "{tested}");
        }
    }

    #[test]
    fn lock_files_and_wrappers_of_a_project_are_used() {
        let locked = names(&["package-lock.json", "gradlew", "requirements.txt"]);
        assert_eq!(argv(BuildTool::Npm, ProjectAction::Restore, &locked).unwrap(), "npm ci");
        let tested = argv(BuildTool::Gradle, ProjectAction::Test, &locked).unwrap();
        assert_eq!(tested, "./gradlew --console=plain test");
        assert_eq!(
            argv(BuildTool::Npm, ProjectAction::Restore, &names(&[])).unwrap(),
            "npm install"
        );
        assert!(
            argv(BuildTool::Pytest, ProjectAction::Lint, &locked)
                .unwrap_err()
                .contains("no linter")
        );
    }

    #[test]
    fn call_arguments_and_filter_are_placed_where_the_program_reads_them() {
        let with = |kind: BuildTool, args: &[&str], filter: Option<&str>| {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            let argv = ["x".to_owned(), "run".to_owned()].into();
            let facts = ProjectProperties {
                test_script: "jest".to_owned(),
                ..ProjectProperties::default()
            };
            kind.with_call_args(argv, args, filter.map(str::to_owned), &facts).unwrap().join(" ")
        };
        assert_eq!(with(BuildTool::Cargo, &["--lib"], Some("adds")), "x run --lib -- adds");
        assert_eq!(with(BuildTool::Npm, &["--bail"], None), "x run -- --bail");
        assert_eq!(with(BuildTool::Npm, &[], None), "x run");
        assert_eq!(with(BuildTool::Pytest, &["-x"], Some("a or b")), "x run -k a or b -x");
        assert_eq!(with(BuildTool::Go, &[], Some("Adds")), "x run -run=Adds");
        let captured = with(BuildTool::Cargo, &["--lib", "--", "--nocapture"], Some("adds"));
        assert_eq!(captured, "x run --lib -- adds --nocapture");
        assert_eq!(
            with(BuildTool::Npm, &["--", "--bail"], Some("adds")),
            "x run -- -t adds --bail"
        );
        assert_eq!(with(BuildTool::Yarn, &["--bail"], Some("adds")), "x run -t adds --bail");
        assert_eq!(
            with(BuildTool::Pytest, &[], Some("test_a.py::test_b")),
            "x run test_a.py::test_b"
        );
        assert_eq!(with(BuildTool::Pytest, &[], Some("tests/unit")), "x run tests/unit");
        assert_eq!(with(BuildTool::Pytest, &[], Some("test_a.py")), "x run test_a.py");
        let quiet = ["-qq", "-x", "-p", "no:terminal", "--quiet", "-p", "no:randomly", "a"];
        assert_eq!(with(BuildTool::Pytest, &quiet, None), "x run -x -p no:randomly a");
    }

    #[test]
    fn a_test_filter_for_make_is_refused() {
        let filter = Some("adds".to_owned());
        let refused = BuildTool::Make.with_call_args(
            Vec::new(),
            Vec::new(),
            filter,
            &ProjectProperties::default(),
        );
        assert!(refused.unwrap_err().contains("`args`"));
    }

    #[test]
    fn pip_installs_into_a_virtual_environment_only() {
        let mut facts = names(&["requirements.txt"]);
        let refused = argv(BuildTool::Pytest, ProjectAction::Restore, &facts).unwrap_err();
        assert!(refused.contains("`python3 -m venv .venv`"), "{refused}");
        facts.virtual_env = Some("/v".to_owned());
        let restored = argv(BuildTool::Pytest, ProjectAction::Restore, &facts).unwrap();
        assert_eq!(restored, "/v/bin/python -m pip install -r requirements.txt");
        facts.interpreter = Some(".venv/bin/python".to_owned());
        let restored = argv(BuildTool::Pytest, ProjectAction::Restore, &facts).unwrap();
        assert_eq!(restored, ".venv/bin/python -m pip install -r requirements.txt");
        assert_eq!(
            argv(BuildTool::Pytest, ProjectAction::Restore, &names(&["uv.lock"])).unwrap(),
            "uv sync"
        );
    }
}
