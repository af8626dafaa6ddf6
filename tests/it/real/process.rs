//! Defines `Process`: the binary itself as a daemon over the demo model, on a port of its own, in a folder of its own.
//!
//! What it is told to do stands in the folder's `config.toml`, what it keeps in the folder's `state`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::house::{PATIENCE, Usage};
use crate::models;

pub(super) struct Process {
    child: Child,
    /// Without a path.
    url: String,
}

/// What was answered, and what the cache did for it.
pub(super) struct Told {
    pub(super) text: String,
    pub(super) usage: Usage,
}

/// Writes the folder's configuration: the demo model as `smol`, and `more`, which begins with keys of `[model]`.
pub(super) fn configure(folder: &Path, more: &str) {
    let text = format!(
        "server.listen = [\"127.0.0.1:0\"]\n[model]\npath = {:?}\nname = \"smol\"\ngpu = \"off\"\n{more}",
        models::smollm2()
    );
    std::fs::write(folder.join("config.toml"), text).unwrap();
}

/// Files of K/V that can be seen in the folder's state.
pub(super) fn kv_files(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.join("state/kv").read_dir().into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).collect()
}

impl Process {
    /// Starts the binary over `folder` and waits until it says where it listens.
    pub(super) fn start(folder: &Path) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hob"))
            .args(["serve", "--config"])
            .arg(folder.join("config.toml"))
            .env("STATE_DIRECTORY", folder.join("state"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = lines.map(Result::unwrap).find_map(|line| Some(line.split_once("endpoint: ")?.1.to_owned()));
        let endpoint = endpoint.expect("it says where it listens");
        Process { child, url: endpoint.trim_end_matches("/v1").to_owned() }
    }

    /// `body` is a whole chat request.
    pub(super) fn ask(&self, body: Value) -> Told {
        let reply = ureq::post(format!("{}/v1/chat/completions", self.url)).send_json(body).unwrap();
        let answer = reply.into_body().read_json::<Value>().unwrap();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        Told { text, usage: Usage::of(&answer["usage"]) }
    }

    pub(super) fn get(&self, path: &str) -> Value {
        ureq::get(format!("{}{path}", self.url)).call().unwrap().into_body().read_json().unwrap()
    }

    /// What `look` finds, as soon as it does.
    pub(super) fn await_that<T>(&self, look: impl Fn(&Process) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "it never came to that");
            std::thread::yield_now();
        }
    }

    /// Waits until all pins are warm; their tokens.
    pub(super) fn await_warm(&self) -> usize {
        self.await_that(|process| {
            let pins = process.get("/hob/v1/pins");
            let pins = pins["pins"].as_array().unwrap();
            let n_tokens = |pin: &Value| pin["tokens"].as_u64().unwrap() as usize;
            pins.iter().all(|pin| pin["warm"] == true).then(|| pins.iter().map(n_tokens).sum())
        })
    }

    /// Bytes of its memory that are in RAM now, mapped files and all.
    pub(super) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells it");
        let kilobytes: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kilobytes << 10
    }

    /// SIGKILL.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, as systemd sends it.
    pub(super) fn stop(mut self) {
        let told = Command::new("sh").args(["-c", &format!("kill -TERM {}", self.child.id())]).status().unwrap();
        assert!(told.success() && self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
