//! Resolves declarations of commands: looks up names, applies defaults and compiles patterns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use serde_json::Value;
use toml::Spanned;
use toolgate_contract::printable::{check_visible, json_texts};
use toolgate_contract::{Effects, ToolId};
use toolgate_world::forwarder::ProgramHostAccess;

use super::argument::CommandArgument;
use super::artefacts::ArtefactPattern;
use super::declared_command::{CommandDeclarationLocation, CommandProgram, DeclaredCommand, snake};
use super::load::{CommandDeclarationError, absolute_program};
use super::table::{
    ArgumentDeclaration, ArgumentDeclarationTable, CommandDeclarationTable, DeclaredArgvElement,
    DeclaredEffects, OrderedTableEntries, into_table,
};
use super::template::ArgvTemplateItem;
use super::type_note::{ArgumentTypeNote, ArgumentValueCount, ArgumentValueKind};
use crate::exec::variable_refusal;

/// The highest limit that a declaration can set for concurrent calls of its command.
const AT_ONCE_MAX: usize = 1_000_000;
/// The longest deadline of a command, in milliseconds: one day.
const DEADLINE_MS_MAX: u64 = 86_400_000;
/// The longest description of a command or argument, and the longest text in a schema, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The defaults for all commands that one file declares.
#[derive(Default)]
pub(super) struct CommandDefaults {
    table: CommandDeclarationTable,
    arguments: Vec<(Spanned<String>, CommandArgument)>,
    env: Vec<(String, String)>,
}

impl CommandDefaults {
    /// Reads the `[defaults]` table of a file that declares commands. Refuses keys that are only
    /// valid for a single command.
    pub(super) fn new(
        defaults: Option<Spanned<CommandDeclarationTable>>,
    ) -> Result<Self, CommandDeclarationError> {
        let Some(defaults) = defaults else { return Ok(Self::default()) };
        let mut table = defaults.into_inner();
        let single =
            |name: &str| format!("`{name}` applies to one command; set it in `[command.…]`");
        if let Some(about) = &table.about {
            return Err(CommandDeclarationError::at(about, single("about")));
        }
        if let Some(argv) = &table.argv {
            return Err(CommandDeclarationError::at(argv, single("argv")));
        }
        let arguments = read_arguments(std::mem::take(&mut table.args))?;
        let env = read_variables(std::mem::take(&mut table.env))?;
        Ok(Self { table, arguments, env })
    }
}

/// Resolves the command that `table` declares with the id `id`. `found` is the location of the
/// declaration, and `programs` are the program paths from the settings.
pub(super) fn resolve_command(
    id: &Spanned<String>,
    table: CommandDeclarationTable,
    defaults: &CommandDefaults,
    found: CommandDeclarationLocation,
    programs: &BTreeMap<String, String>,
) -> Result<DeclaredCommand, CommandDeclarationError> {
    let (tool, stage, name) = split_id(id)?;
    let CommandDefaults { table: defaults, arguments: shared, env: shared_env } = defaults;
    let about = table.about.ok_or_else(|| {
        CommandDeclarationError::at(id, "the command has no description; add `about = \"…\"`")
    })?;
    check_text(&about, "the description", about.get_ref())?;
    let base = found.file.parent().unwrap_or(std::path::Path::new(""));
    let written = table.program.as_ref().or(defaults.program.as_ref()).ok_or_else(|| {
        CommandDeclarationError::at(
            id,
            "the command names no program; add `program = \"…\"` to it or to `[defaults]`",
        )
    })?;
    if written.get_ref().trim().is_empty() || written.get_ref().contains('\0') {
        return Err(CommandDeclarationError::at(
            written,
            "the program's name is empty or contains a NUL character",
        ));
    }
    let program = CommandProgram {
        name: written.get_ref().clone(),
        at: programs
            .get(written.get_ref())
            .cloned()
            .unwrap_or_else(|| absolute_program(written.get_ref(), base)),
        env: table.program_env.or_else(|| defaults.program_env.clone()),
    };

    let own = read_arguments(table.args)?;
    let is_own = |argument: &CommandArgument| own.iter().any(|(_, it)| it.name == argument.name);
    let inherited = shared.iter().filter(|(_, argument)| !is_own(argument)).cloned();
    let inherited: Vec<_> = inherited.collect();
    let places: Vec<Spanned<String>> =
        own.iter().chain(&inherited).map(|(place, _)| place.clone()).collect();
    let arguments: Vec<CommandArgument> =
        own.into_iter().chain(inherited).map(|(_, argument)| argument).collect();
    check_distinct(&arguments, &places)?;

    let argv = table.argv.ok_or_else(|| {
        CommandDeclarationError::at(
            id,
            "the command has no `argv`; `argv = [\"{options}\"]` passes every argument",
        )
    })?;
    let argv = parse_argv(argv.get_ref(), &arguments)?;
    let stdin = table.stdin.as_ref().or(defaults.stdin.as_ref());
    let stdin = stdin.map(|name| {
        let found = find_argument(&arguments, name.get_ref());
        found.map_err(|reason| CommandDeclarationError::at(name, reason))
    });
    let stdin = stdin.transpose()?;
    let patterns = table.artefacts.as_ref().or(defaults.artefacts.as_ref());
    let mut artefacts = Vec::new();
    for pattern in patterns.into_iter().flatten() {
        let find = |name: &str| find_argument(&arguments, name);
        let parsed = ArtefactPattern::parse(pattern.get_ref(), &arguments, find);
        artefacts.push(parsed.map_err(|reason| CommandDeclarationError::at(pattern, reason))?);
    }
    let placed: BTreeSet<usize> =
        argv.iter().flat_map(ArgvTemplateItem::arguments).chain(stdin).collect();
    let rest: Vec<usize> = (0..arguments.len()).filter(|index| !placed.contains(index)).collect();
    let has_rest = argv.iter().any(holds_rest);
    let used: BTreeSet<usize> = artefacts.iter().flat_map(ArtefactPattern::arguments).collect();
    if let Some(index) = rest.iter().find(|index| !has_rest && !used.contains(index)) {
        let name = &arguments[*index].name;
        return Err(CommandDeclarationError::at(
            &places[*index],
            format!("`{name}` is not passed on; put `{{--{name}}}` or `{{options}}` into argv"),
        ));
    }

    let deadline_ms = table.deadline_ms.as_ref().or(defaults.deadline_ms.as_ref());
    if let Some(ms) = deadline_ms.filter(|ms| !(1..=DEADLINE_MS_MAX).contains(ms.get_ref())) {
        return Err(CommandDeclarationError::at(
            ms,
            format!("`deadline_ms` may be 1 to {DEADLINE_MS_MAX} (one day)"),
        ));
    }
    let at_once = table.at_once.as_ref().or(defaults.at_once.as_ref());
    if let Some(zero) = at_once.filter(|at_once| *at_once.get_ref() == 0) {
        return Err(CommandDeclarationError::at(
            zero,
            "`at_once` is 0, so the command could never run; deny the tool instead",
        ));
    }
    if let Some(many) = at_once.filter(|at_once| *at_once.get_ref() > AT_ONCE_MAX) {
        return Err(CommandDeclarationError::at(
            many,
            format!("`at_once` may be 1 to {AT_ONCE_MAX}"),
        ));
    }
    let progress = table.progress.as_ref().or(defaults.progress.as_ref());
    let hosts = table.hosts.as_ref().or(defaults.hosts.as_ref());
    let hosts = hosts.map(|hosts| read_hosts(id.get_ref(), hosts)).transpose()?.flatten();
    let mut env = shared_env.clone();
    env.extend(read_variables(table.env)?);
    let effects = match table.effects.or(defaults.effects).unwrap_or(DeclaredEffects::Runs) {
        DeclaredEffects::Reads => Effects::Reads,
        DeclaredEffects::Adds => Effects::Adds,
        DeclaredEffects::Changes => Effects::Changes,
        DeclaredEffects::Runs => Effects::Runs,
    };
    Ok(DeclaredCommand {
        id: tool,
        written_id: id.get_ref().clone(),
        title: title(&stage, &name),
        about: about.into_inner(),
        place: found,
        program,
        argv,
        rest,
        stdin,
        cwd: table.cwd.or_else(|| defaults.cwd.clone()),
        env,
        env_keep: defaults.env_keep.iter().chain(&table.env_keep).cloned().collect(),
        hosts,
        deadline: deadline_ms.map(|ms| Duration::from_millis(*ms.get_ref())),
        success: table.success.or_else(|| defaults.success.clone()).unwrap_or_else(|| vec![0]),
        artefacts,
        replaces: table.replaces.unwrap_or(false),
        idempotent: table.idempotent.or(defaults.idempotent).unwrap_or(false),
        effects,
        at_once: at_once.map(|at_once| *at_once.get_ref()),
        progress: progress.map(compile_progress).transpose()?,
        arguments,
    })
}

/// Parses the hosts that the program of the command `id` may reach.
fn read_hosts(
    id: &str,
    hosts: &Spanned<Vec<String>>,
) -> Result<Option<Arc<ProgramHostAccess>>, CommandDeclarationError> {
    let setting = format!("`hosts` of the command `{id}`");
    ProgramHostAccess::parse(hosts.get_ref(), &setting)
        .map_err(|why| CommandDeclarationError::at(hosts, why))
}

/// Splits a command's id, `stage.name`, into tool id, stage and name.
fn split_id(id: &Spanned<String>) -> Result<(ToolId, String, String), CommandDeclarationError> {
    let is_segment = |segment: &str| {
        !segment.is_empty()
            && segment.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
    };
    let parts = id.get_ref().split_once('.');
    let valid = parts.filter(|(stage, name)| is_segment(stage) && is_segment(name));
    let tool = valid.and_then(|(stage, name)| {
        let tool = ToolId::new(&snake(id.get_ref()))?;
        Some((tool, stage.to_owned(), name.to_owned()))
    });
    tool.ok_or_else(|| {
        CommandDeclarationError::at(
            id,
            format!(
                "`{}` is not a command id; write `[command.\"stage.name\"]` in quotes, with a to \
                 z, 0 to 9, `_` and `-` in both parts",
                id.get_ref().escape_debug()
            ),
        )
    })
}

/// Returns the title of a command, such as `Visualize compose video`.
fn title(stage: &str, name: &str) -> String {
    let words = if stage == name { stage.to_owned() } else { format!("{stage} {name}") };
    let words = words.replace(['-', '_'], " ");
    let first = words.chars().next().map(char::to_uppercase);
    first.into_iter().flatten().chain(words.chars().skip(1)).collect()
}

/// Reads the arguments in the table of a command, in the order of the file.
fn read_arguments(
    args: OrderedTableEntries<Spanned<ArgumentDeclaration>>,
) -> Result<Vec<(Spanned<String>, CommandArgument)>, CommandDeclarationError> {
    let argument = |(name, arg)| {
        let argument = read_argument(&name, into_table(arg))?;
        check_argument_texts(&name, &argument)?;
        Ok((name, argument))
    };
    args.0.into_iter().map(argument).collect()
}

/// Refuses an argument whose description, or a text in whose schema, is too long or has a hidden
/// character.
fn check_argument_texts(
    place: &Spanned<String>,
    argument: &CommandArgument,
) -> Result<(), CommandDeclarationError> {
    let schema = argument.full_schema();
    let subject = format!("a text of `{}`", argument.name);
    json_texts(&schema).into_iter().try_for_each(|text| check_text(place, &subject, text))
}

/// Refuses `text` if it is too long or has a hidden character. The error points to `place` in the
/// file, and calls the text `subject`.
fn check_text(
    place: &Spanned<String>,
    subject: &str,
    text: &str,
) -> Result<(), CommandDeclarationError> {
    check_visible(text, TEXT_BYTES_MAX).map_err(|fault| {
        CommandDeclarationError::at(place, format!("{subject} {fault}; change the text"))
    })
}

fn read_argument(
    name: &Spanned<String>,
    arg: ArgumentDeclarationTable,
) -> Result<CommandArgument, CommandDeclarationError> {
    let written = name.get_ref();
    let is_name = written.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && written.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if !is_name || written == "options" {
        let reason = match is_name {
            true => "in argv, this name means all other arguments",
            false => "use letters, digits, `_` and `-`",
        };
        return Err(CommandDeclarationError::at(
            name,
            format!("`{}` is not a valid argument name; {reason}", written.escape_debug()),
        ));
    }
    let ArgumentDeclarationTable {
        r#type,
        about,
        default,
        assumed,
        aliases,
        option,
        many,
        joined,
        dash,
        required,
        schema,
    } = arg;
    let mut note = match (&r#type, &schema) {
        (Some(note), None) => ArgumentTypeNote::parse(note.get_ref())
            .map_err(|reason| CommandDeclarationError::at(note, reason))?,
        (None, Some(_)) => ArgumentTypeNote {
            kind: ArgumentValueKind::Any,
            count: ArgumentValueCount::One,
            required,
            default: None,
        },
        (Some(_), Some(schema)) => {
            return Err(CommandDeclarationError::at(
                schema,
                "`type` and `schema` cannot be combined; keep one of them",
            ));
        }
        (None, None) => {
            return Err(CommandDeclarationError::at(
                name,
                format!("`{written}` has no type; add e.g. `type = \"string\"`"),
            ));
        }
    };
    note.required |= required;
    if let Some(default) = default {
        let problem = if note.required {
            Some("the argument is required")
        } else if note.default.is_some() {
            Some("its type note already has a default")
        } else if !note.accepts(default.get_ref()) {
            Some("the default does not match the type")
        } else {
            None
        };
        if let Some(problem) = problem {
            let message = format!("`{written}` cannot have this default: {problem}");
            return Err(CommandDeclarationError::at(&default, message));
        }
        note.default = Some(default.into_inner());
    }
    if let Some(schema) = &schema
        && !matches!(schema.get_ref(), Value::Object(_))
    {
        return Err(CommandDeclarationError::at(schema, "`schema` must be a table"));
    }
    if let Some(option) = &option
        && (!option.get_ref().starts_with('-') || option.get_ref().contains(char::is_whitespace))
    {
        let shown = option.get_ref().escape_debug();
        return Err(CommandDeclarationError::at(
            option,
            format!("`{shown}` is not an option: it must begin with `-` and have no blanks"),
        ));
    }
    Ok(CommandArgument {
        name: written.clone(),
        about,
        note,
        assumed,
        schema: schema.map(Spanned::into_inner),
        aliases: aliases.into_iter().map(Spanned::into_inner).collect(),
        option: option
            .map_or_else(|| format!("--{}", written.replace('_', "-")), Spanned::into_inner),
        many,
        joined,
        dash,
    })
}

/// Refuses two arguments that have an equal name or alias. `-` and `_` count as equal.
fn check_distinct(
    arguments: &[CommandArgument],
    places: &[Spanned<String>],
) -> Result<(), CommandDeclarationError> {
    let mut seen = BTreeSet::new();
    for (argument, place) in arguments.iter().zip(places) {
        let aliases = argument.aliases.iter().map(|alias| snake(alias));
        // An alias may be another spelling of the argument's own name.
        let names: BTreeSet<String> = aliases.chain([snake(&argument.name)]).collect();
        for name in names {
            if !seen.insert(name.clone()) {
                return Err(CommandDeclarationError::at(
                    place,
                    format!("two arguments have the name or alias `{name}`"),
                ));
            }
        }
    }
    Ok(())
}

/// Returns the index of the argument `name` in `arguments`. The error for an unknown argument
/// suggests a similar name.
fn find_argument(arguments: &[CommandArgument], name: &str) -> Result<usize, String> {
    let found = arguments.iter().position(|argument| snake(&argument.name) == snake(name));
    found.ok_or_else(|| {
        let names = arguments.iter().map(|argument| argument.name.as_str());
        let suggestion = super::suggestion(name, names);
        format!(
            "the argument `{}` is not declared; declare it in `args`, or write `{{{{` for a brace\
             {suggestion}",
            name.escape_debug()
        )
    })
}

fn parse_argv(
    elements: &[Spanned<DeclaredArgvElement>],
    arguments: &[CommandArgument],
) -> Result<Vec<ArgvTemplateItem>, CommandDeclarationError> {
    let item = |word: &str| {
        ArgvTemplateItem::parse(word, arguments, |name| find_argument(arguments, name))
    };
    let mut items = Vec::new();
    for element in elements {
        match element.get_ref() {
            DeclaredArgvElement::Word(word) => {
                let item =
                    item(word).map_err(|reason| CommandDeclarationError::at(element, reason))?;
                if let Some(index) =
                    item.required_arguments().into_iter().find(|at| !arguments[*at].has_value())
                {
                    let name = &arguments[index].name;
                    return Err(CommandDeclarationError::at(
                        element,
                        format!(
                            "`{name}` is optional; write `{{{name}?}}` or put it into an array to \
                             leave it out, make it required with `!`, or give it a default"
                        ),
                    ));
                }
                items.push(item);
            }
            DeclaredArgvElement::Group(words) => {
                let mut group = Vec::new();
                for word in words {
                    let item = item(word.get_ref());
                    group.push(item.map_err(|reason| CommandDeclarationError::at(word, reason))?);
                }
                items.push(ArgvTemplateItem::Group(group));
            }
        }
    }
    Ok(items)
}

fn holds_rest(item: &ArgvTemplateItem) -> bool {
    match item {
        ArgvTemplateItem::Rest => true,
        ArgvTemplateItem::Group(items) => items.iter().any(holds_rest),
        ArgvTemplateItem::Word { .. }
        | ArgvTemplateItem::Option(_)
        | ArgvTemplateItem::Spread(_) => false,
    }
}

fn read_variables(
    env: OrderedTableEntries<Spanned<String>>,
) -> Result<Vec<(String, String)>, CommandDeclarationError> {
    let variable = |(name, value): (Spanned<String>, Spanned<String>)| match variable_refusal(
        name.get_ref(),
        value.get_ref(),
    ) {
        Some(reason) => {
            let message = format!("`{}` {reason}", name.get_ref().escape_debug());
            Err(CommandDeclarationError::at(&name, message))
        }
        None => Ok((name.into_inner(), value.into_inner())),
    };
    env.0.into_iter().map(variable).collect()
}

/// Compiles the regular expression that reads a program's progress from its output.
fn compile_progress(pattern: &Spanned<String>) -> Result<RegexMatcher, CommandDeclarationError> {
    let matcher = RegexMatcher::new(pattern.get_ref()).map_err(|err| {
        let message = format!("`progress` is not a valid regular expression: {err}");
        CommandDeclarationError::at(pattern, message)
    })?;
    // The whole match counts as a group too.
    match matcher.capture_count() {
        2 | 3 => Ok(matcher),
        _ => Err(CommandDeclarationError::at(
            pattern,
            "`progress` needs one group (a percentage, as in `(\\d+)%`) or two (done and total)",
        )),
    }
}

impl CommandArgument {
    /// Returns true if the argument has a value in every call.
    fn has_value(&self) -> bool {
        self.note.required || self.note.default.is_some()
    }
}
