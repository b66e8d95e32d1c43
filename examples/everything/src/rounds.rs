//! Tools that ask by keys of their own, for clients that call again with the answers.

use serde_json::{Value, json};
use toolgate::Offer;
use toolgate_contract::{
    Choice, Ctx, Effects, Kind, NoInput, Question, Questions, Sampling, Shown, Tool, ToolError,
};

pub(crate) fn add(offer: Offer) -> Offer {
    offer
        .tool(Elicitation)
        .tool(SamplingRound)
        .tool(ListRoots)
        .tool(RequestState)
        .tool(TamperedState)
        .tool(MultipleInputs)
        .tool(MultiRound)
        .tool(Capabilities)
}

/// The schema of a form with one field.
pub(crate) fn one_field(name: &str, kind: &str) -> Value {
    json!({ "type": "object", "properties": { name: { "type": kind } }, "required": [name] })
}

/// What was written into the field `name`; nothing if the person did not answer.
pub(crate) fn field(choice: &Choice, name: &str) -> Option<String> {
    match choice {
        Choice::Accepted(content) => Some(content.get(name)?.as_str()?.to_owned()),
        Choice::Declined | Choice::Canceled => None,
    }
}

struct Elicitation;

impl Tool for Elicitation {
    const NAME: &'static str = "test_input_required_result_elicitation";
    const TITLE: &'static str = "Asks for a name";
    const ABOUT: &'static str = "Greets the person by name.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let form = one_field("name", "string");
        let choice = ctx.form("user_name", "What is your name?", form).await?;
        let name = field(&choice, "name").unwrap_or_else(|| "stranger".to_owned());
        Ok(Shown::text(format!("Hello, {name}!")))
    }
}

struct SamplingRound;

impl Tool for SamplingRound {
    const NAME: &'static str = "test_input_required_result_sampling";
    const TITLE: &'static str = "Asks the model";
    const ABOUT: &'static str = "Tells what the client's model says the capital of France is.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let sampling = Sampling::of("What is the capital of France?", 100);
        Ok(Shown::text(ctx.sample("capital_question", sampling).await?.text))
    }
}

struct ListRoots;

impl Tool for ListRoots {
    const NAME: &'static str = "test_input_required_result_list_roots";
    const TITLE: &'static str = "Asks for folders";
    const ABOUT: &'static str = "Tells which folders the client works in.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let roots = ctx.roots("client_roots").await?;
        let uris: Vec<_> = roots.iter().map(|root| root.uri.as_str()).collect();
        Ok(Shown::text(format!("The client works in {}", uris.join(", "))))
    }
}

struct RequestState;

impl Tool for RequestState {
    const NAME: &'static str = "test_input_required_result_request_state";
    const TITLE: &'static str = "Keeps its state at the client";
    const ABOUT: &'static str = "Asks for a yes; what it knows is with the client meanwhile.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.form("confirm", "Please confirm", one_field("ok", "boolean")).await?;
        // A state that is not the one it gave out is refused before this is reached.
        Ok(Shown::text("state-ok"))
    }
}

struct TamperedState;

impl Tool for TamperedState {
    const NAME: &'static str = "test_input_required_result_tampered_state";
    const TITLE: &'static str = "Refuses a changed state";
    const ABOUT: &'static str = "Asks for a yes; whoever changed the state meanwhile is refused.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        ctx.form("confirm", "Please confirm", one_field("ok", "boolean")).await?;
        Ok(Shown::text("The state is as it was"))
    }
}

struct MultipleInputs;

impl Tool for MultipleInputs {
    const NAME: &'static str = "test_input_required_result_multiple_inputs";
    const TITLE: &'static str = "Asks three things at once";
    const ABOUT: &'static str = "Asks the person, the model and for folders in one go.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let form = Question::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let sample = Question::Sample(Box::new(Sampling::of("Generate a greeting", 50)));
        let given = ctx
            .asker
            .ask(Questions::from([
                ("user_name".to_owned(), form),
                ("greeting".to_owned(), sample),
                ("client_roots".to_owned(), Question::Roots),
            ]))
            .await?;
        let keys: Vec<_> = given.keys().map(String::as_str).collect();
        Ok(Shown::text(format!("Answered: {}", keys.join(", "))))
    }
}

struct MultiRound;

impl Tool for MultiRound {
    const NAME: &'static str = "test_input_required_result_multi_round";
    const TITLE: &'static str = "Asks twice";
    const ABOUT: &'static str = "Asks for a name, and then for a colour.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let form = one_field("name", "string");
        let name = ctx.form("step1", "Step 1: What is your name?", form).await?;
        let form = one_field("color", "string");
        let color = ctx.form("step2", "Step 2: What is your favorite color?", form).await?;
        let (name, color) = (field(&name, "name"), field(&color, "color"));
        let or_not = |said: Option<String>| said.unwrap_or_else(|| "(not said)".to_owned());
        Ok(Shown::text(format!("{} likes {}", or_not(name), or_not(color))))
    }
}

struct Capabilities;

impl Tool for Capabilities {
    const NAME: &'static str = "test_input_required_result_capabilities";
    const TITLE: &'static str = "Asks what can be asked";
    const ABOUT: &'static str = "Asks whatever this client can be asked.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let form = Question::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let sample = Question::Sample(Box::new(Sampling::of("Generate a greeting", 50)));
        let all = [(Kind::Form, "user_name", form), (Kind::Sample, "greeting", sample)];
        let can = ctx.asker.can();
        let questions: Questions = all
            .into_iter()
            .filter(|(kind, ..)| can.has(*kind))
            .map(|(_, key, question)| (key.to_owned(), question))
            .collect();
        let given = ctx.asker.ask(questions).await?;
        Ok(Shown::text(format!("Answered: {}", given.len())))
    }
}
