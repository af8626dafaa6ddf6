//! Several choices of one request through a whole daemon: they stand on one prefill.

use std::sync::Arc;

use hob::engine::simulated::Attention;
use serde_json::{Value, json};

use crate::cold;
use crate::house::{House, MODEL, Setup, Usage};

/// Answers of 16 tokens to one long question: the texts, the usage, and the tokens that the engine computed for it all. None is
/// guessed: how many are depends on how long steps take.
fn ask(n_choices: usize, setup: Setup, options: &Value) -> (Vec<String>, Usage, usize) {
    let model = Arc::new(cold::model(Attention::Full));
    let faults = model.faults();
    let house = House::start(model, Setup { speculate: false, ..setup });
    let messages = [json!({ "role": "user", "content": "Is the oven on? ".repeat(80) })];
    let mut body = json!({ "model": MODEL, "messages": messages, "n": n_choices, "max_tokens": 16 });
    body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let reply = house.ask(&body);
    assert_eq!(reply.head.status, 200, "{reply:?}");
    let answer = reply.json();
    house.await_rest();
    house.close();
    let choices = answer["choices"].as_array().unwrap().iter();
    let texts = choices.map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect();
    (texts, Usage::of(&answer["usage"]), faults.n_computed())
}

#[test]
fn each_choice_computes_the_last_prompt_token_and_its_own_answer() {
    let greedy = json!({ "temperature": 0 });
    let (one, usage_of_one, n_computed_of_one) = ask(1, Setup::default(), &greedy);
    let n_decoded = n_computed_of_one - usage_of_one.n_prompt;
    assert!(usage_of_one.n_prompt > 1_000 && n_decoded > 0, "{usage_of_one:?}");
    // Side by side, and one after the other.
    for parallel in [8, 2, 1] {
        let (texts, usage, n_computed) = ask(8, Setup { parallel, ..Setup::default() }, &greedy);
        assert_eq!(texts, vec![one[0].clone(); 8]);
        assert_eq!(n_computed, usage.n_prompt + 7 + 8 * n_decoded, "{parallel} at once");
        let expected = Usage { n_generated: 8 * usage_of_one.n_generated, ..usage_of_one };
        assert_eq!(usage, expected);
    }
}

#[test]
fn a_seed_is_another_one_for_each_choice_and_the_same_each_time() {
    let setup = || Setup { parallel: 3, ..Setup::default() };
    let options = json!({ "temperature": 1.5, "seed": 7 });
    let (texts, _, _) = ask(3, setup(), &options);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(ask(3, setup(), &options).0, texts);
    let (second, _, _) = ask(1, setup(), &json!({ "temperature": 1.5, "seed": 8 }));
    assert_eq!(second[0], texts[1]);
}
