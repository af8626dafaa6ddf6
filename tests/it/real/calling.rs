//! Calls of real models through a whole daemon: each fits its tool's schema, whatever the model makes of the question.

use std::path::Path;
use std::sync::Arc;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};
use serde_json::{Value, json};

use crate::house::{House, MODEL, Setup};
use crate::models;

const TOOLS: &str = include_str!("../../../assets/demo/tools.json");

/// A command, the tool for it, and what one of its arguments must hold.
const COMMANDS: [(&str, &str, &str); 30] = [
    ("Turn on the kitchen light.", "set_light", "kitchen"),
    ("Turn off the light in the hall.", "set_light", "hall"),
    ("Dim the bedroom lights to 20 percent.", "set_light", "bedroom"),
    ("Switch the lamp in the map room on.", "set_light", "map room"),
    ("Make the light in the bathroom warm.", "set_light", "bathroom"),
    ("Set the kitchen to 21 degrees.", "set_climate", "kitchen"),
    ("Heat the bathroom to 23 degrees.", "set_climate", "bathroom"),
    ("Cool the bedroom down to 17 degrees.", "set_climate", "bedroom"),
    ("Open the garage door.", "move_cover", "garage"),
    ("Close the blinds in the bedroom.", "move_cover", "bedroom"),
    ("Open the kitchen blinds half way.", "move_cover", "kitchen"),
    ("Play jazz in the kitchen.", "play_media", "kitchen"),
    ("Pause the music in the hall.", "play_media", "hall"),
    ("Play the next song in the bedroom.", "play_media", "bedroom"),
    ("Set the volume in the kitchen to 30 percent.", "play_media", "kitchen"),
    ("Start a pasta timer for 9 minutes.", "set_timer", "pasta"),
    ("Cancel the tea timer.", "set_timer", "tea"),
    ("Add milk and bread to the shopping list.", "edit_list", "shopping"),
    ("Remove eggs from the shopping list.", "edit_list", "shopping"),
    ("Read me the shopping list.", "edit_list", "shopping"),
    ("Which events are there from 2026-06-12 to 2026-06-14?", "find_events", "2026-06-12"),
    ("Clean the kitchen with the vacuum.", "run_vacuum", "clean"),
    ("Send the vacuum back to its dock.", "run_vacuum", "dock"),
    ("How warm is it in the bathroom?", "get_state", "bathroom"),
    ("Is the front door locked?", "get_state", "front door"),
    ("How humid is it in the cellar?", "get_state", "cellar"),
    ("How much energy did we use yesterday?", "get_energy", "yesterday"),
    ("Announce that dinner is ready.", "announce", "dinner"),
    ("Start the film scene.", "run_scene", "film"),
    ("Run the bedtime scene.", "run_scene", "bedtime"),
];

fn house(path: &Path) -> House {
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(path, weights, None, |_| {}).unwrap());
    House::start(model, Setup { parallel: 1, ..Setup::default() })
}

fn tools() -> Vec<Value> {
    serde_json::from_str(TOOLS).unwrap()
}

/// Names and arguments of the calls in the answer to `body`.
fn calls(house: &House, body: &Value) -> Vec<(String, Value)> {
    let reply = house.ask(body);
    assert_eq!(reply.head.status, 200, "{reply:?}");
    let message = reply.json()["choices"][0]["message"].clone();
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: Value| {
        let arguments = call["function"]["arguments"].as_str().expect("arguments are a text");
        let arguments = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        (call["function"]["name"].as_str().expect("a call has a name").to_owned(), arguments)
    };
    calls.into_iter().map(call).collect()
}

/// What is wrong with a call. Of numbers with a fraction llama.cpp's grammars do not know the bounds.
fn fault((name, arguments): &(String, Value)) -> Option<String> {
    let tools = tools();
    let Some(tool) = tools.iter().find(|tool| tool["function"]["name"] == **name) else {
        return Some(format!("there is no tool {name}"));
    };
    let schema = &tool["function"]["parameters"];
    let missing =
        schema["required"].as_array().into_iter().flatten().find(|key| arguments.get(key.as_str().unwrap()).is_none());
    if let Some(key) = missing {
        return Some(format!("{name} lacks {key}: {arguments}"));
    }
    let of_object = arguments.as_object().expect("arguments are an object");
    let wrong = of_object.iter().find(|(key, value)| !fits(value, &schema["properties"][key.as_str()]));
    wrong.map(|(key, value)| format!("{name}.{key} = {value}"))
}

fn fits(value: &Value, schema: &Value) -> bool {
    if let Some(choices) = schema["enum"].as_array() {
        return choices.contains(value);
    }
    match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => {
            let bound = |key: &str, or: i64| schema[key].as_i64().unwrap_or(or);
            value.as_i64().is_some_and(|n| (bound("minimum", i64::MIN)..=bound("maximum", i64::MAX)).contains(&n))
        }
        Some("number") => value.is_number(),
        Some("array") => value.as_array().is_some_and(|items| items.iter().all(|item| fits(item, &schema["items"]))),
        _ => false,
    }
}

/// Each question in another heat and with another seed; the tools stay, so that the prompt is computed once.
fn required_calls_are_valid(n_requests: u64) {
    let house = house(&models::smollm2());
    for seed in 0..n_requests {
        let (question, ..) = COMMANDS[seed as usize % COMMANDS.len()];
        let temperature = 0.2 + 0.2 * (seed % 7) as f64;
        let calls = calls(
            &house,
            &json!({
                "model": MODEL, "messages": [{ "role": "user", "content": question }], "tools": tools(),
                "tool_choice": "required", "seed": seed, "temperature": temperature, "max_tokens": 1_000
            }),
        );
        assert_eq!(calls.len(), 1, "{question} at {temperature}");
        assert_eq!(calls.iter().find_map(fault), None, "{question} at {temperature}");
    }
    house.await_rest();
    house.close();
}

#[test]
fn twenty_required_calls_are_valid() {
    required_calls_are_valid(20);
}

#[test]
fn soak_two_hundred_required_calls_are_valid() {
    required_calls_are_valid(200);
}

/// How many of `commands` are called at all, with the right tool, and for the right thing: a row of a table. Every call is valid.
fn commanded(house: &House, commands: &[(&str, &str, &str)], tool_choice: &str) -> usize {
    let (mut n_called, mut n_tool, mut n_right) = (0, 0, 0);
    for (question, tool, thing) in commands {
        let messages = json!([
            { "role": "system", "content": "You control a house. Use the tools." },
            { "role": "user", "content": question }
        ]);
        let body = json!({
            "model": MODEL, "messages": messages, "tools": tools(), "tool_choice": tool_choice, "temperature": 0, "max_tokens": 200
        });
        let calls = calls(house, &body);
        assert_eq!(calls.iter().find_map(fault), None, "{question}");
        n_called += usize::from(!calls.is_empty());
        let named = calls.first().filter(|(name, _)| name == tool);
        n_tool += usize::from(named.is_some());
        let is_right = named.is_some_and(|(_, arguments)| arguments.to_string().to_lowercase().contains(thing));
        n_right += usize::from(is_right);
        eprintln!("{tool_choice}: {} {question} -> {calls:?}", if is_right { "right" } else { "wrong" });
    }
    eprintln!("| `{tool_choice}`, of {} | {n_called} | {n_tool} | {n_right} |", commands.len());
    n_called
}

/// By itself so small a model often writes the call as plain JSON, which is text; made to call, it must.
fn commands_are_called_validly(commands: &[(&str, &str, &str)]) {
    let house = house(&models::qwen().expect("`make test-models` and `make soak` fetch the model"));
    eprintln!("| tool_choice | called | the right tool | and the right thing |\n|---|---|---|---|");
    commanded(&house, commands, "auto");
    assert_eq!(commanded(&house, commands, "required"), commands.len());
    house.await_rest();
    house.close();
}

#[test]
fn models_three_commands_are_called_validly() {
    commands_are_called_validly(&COMMANDS[..3]);
}

#[test]
fn soak_thirty_commands_are_called_validly() {
    commands_are_called_validly(&COMMANDS);
}
