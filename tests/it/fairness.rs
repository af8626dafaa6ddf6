//! What a busy house says to its clients: whole daemons over the simulated engine.

use std::sync::{Arc, mpsc};

use hob::engine::simulated::Attention;
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{Answer, House, MODEL, Setup};

fn question(text: &str, is_streamed: bool) -> Value {
    let messages = json!([{ "role": "user", "content": text }]);
    json!({ "model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 1, "stream": is_streamed })
}

#[test]
fn a_client_that_drops_and_asks_again_computes_only_the_rest() {
    let model = model(Attention::Full);
    let faults = model.faults();
    let house = House::start(Arc::new(model), Setup::default());
    let text = "Which of the windows upstairs are open? ".repeat(60);
    faults.gate(4);
    let first = house.send(question(&text, true).to_string());
    house.await_status(|status| status.cells.held == 4 * 256);
    drop(first);
    faults.open_gate();
    house.await_rest();
    // The step that ran when it hung up was the last, if there was one.
    let n_computed = faults.n_computed();
    assert!(n_computed == 4 * 256 || n_computed == 5 * 256, "{n_computed}");
    let again = Answer::of(&house.ask(&question(&text, false)));
    assert!(again.usage.n_prompt > 2_000, "{again:?}");
    assert_eq!(again.usage.n_cached, n_computed);
    assert_eq!(faults.n_computed(), again.usage.n_prompt, "no token twice");
    house.close();
}

#[test]
fn a_full_house_says_when_to_come_again_in_each_dialects_words() {
    let model = model(Attention::Full);
    let faults = model.faults();
    let house = House::start(Arc::new(model), Setup { parallel: 1, queue: 2, ..Setup::default() });
    // Something is measured, so that the time is predicted from it.
    house.ask(&question(&"How long does the washing machine take? ".repeat(20), false));
    house.await_rest();
    faults.gate(0);
    let running = house.send(question(&"a".repeat(600), true).to_string());
    house.await_status(|status| status.n_running == 1);
    let (sender, replies) = mpsc::sync_channel(3);
    let waiting: Vec<_> = ["b", "c", "d"]
        .map(|letter| {
            let (exchange, sender) = (house.send(question(&letter.repeat(600), true).to_string()), sender.clone());
            std::thread::spawn(move || sender.send(exchange.reply().head.status).unwrap())
        })
        .into();
    // Two wait for as long as the gate is closed: now the queue is full.
    assert_eq!(replies.recv(), Ok(503));
    let status = house.status();
    let n_seconds = (status.n_tokens_ahead as u64).div_ceil(status.prefill_tokens_per_second).clamp(1, 600);
    let body = question("Hm?", false).to_string();
    let refused = |path: &str| {
        let reply = house.call("POST", path, &body);
        assert_eq!(reply.head.status, 503, "{reply:?}");
        assert_eq!(reply.head.header("retry-after"), Some(&*n_seconds.to_string()));
        reply.json()["error"].clone()
    };
    let openai = refused("/v1/chat/completions");
    assert_eq!((&openai["code"], &openai["type"]), (&json!("queue_full"), &json!("server_error")));
    assert_eq!(refused("/api/chat"), json!("the queue is full"));
    faults.open_gate();
    assert_eq!(running.reply().head.status, 200);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!([replies.recv(), replies.recv()], [Ok(200), Ok(200)]);
    house.close();
}
