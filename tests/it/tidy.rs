//! Reads the source as text and holds the borders that the map in `src/lib.rs` draws.
//!
//! A *room* is a folder or file directly under `src/`. A *rule* says which rooms may name a crate, or which other rooms a room
//! may name; each has its reason. Comments do not count. What the compiler or clippy checks is not checked again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A source file, its comments cut off; `name` is relative to `src/`.
struct File {
    name: String,
    text: String,
    code: String,
}

impl File {
    fn room(&self) -> &str {
        self.name.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }
}

fn files(folder: &str) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
                let code = code.collect::<Vec<_>>().join("\n");
                files.push(File { name: path.strip_prefix(&root).unwrap().display().to_string(), text, code });
            }
        }
    }
    assert!(files.len() > 3, "{folder} has been found");
    files
}

/// Whether `word` stands in `code` by itself.
fn names(code: &str, word: &str) -> bool {
    let is_inner = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word)
        .any(|(start, _)| !code[..start].ends_with(is_inner) && !code[start + word.len()..].starts_with(is_inner))
}

/// Where only some may name a word: the words, the beginnings of the files that may, and why.
const CRATES: &[(&[&str], &[&str], &str)] = &[
    (
        &["llama_cpp_2", "llama_cpp_sys_2"],
        &["engine/llama/"],
        "llama.cpp is reached through one folder, so that `--no-default-features` builds and tests all the rest",
    ),
    (&["unsafe"], &["engine/llama/"], "only where C++ is called is there anything that Rust cannot check"),
    (&["rusqlite"], &["telemetry/"], "one thread owns the database, and its schema is one room's business"),
    (
        &["hyper", "hyper_util", "axum", "tower", "tokio_stream"],
        &["http/"],
        "wire formats and sockets may change without the scheduler noticing",
    ),
    (
        &["serde_json", "serde"],
        &[
            "http/",
            "prompt/",
            "config/",
            "commands/",
            "engine/llama/template",
            "engine/llama/answers",
            "engine/simulated/answers",
            "telemetry/",
        ],
        "the cache and the scheduler know tokens, not JSON; chat templates and tools are JSON",
    ),
    (&["clap"], &["main.rs"], "arguments are read in one place; commands take values"),
    (&["indicatif"], &["commands/"], "progress is shown by commands; the daemon under systemd has no terminal"),
    (&["jiff"], &["prompt/moment.rs"], "what time it is, is an argument to all that plans"),
    (&["anyhow"], &["main.rs"], "rooms have error types of their own; only the end of the line needs none"),
];

/// The other rooms that each may name, and why where it is not plain from the direction `http → prompt → engine`.
/// `main`, `commands`, `daemon` and `lib` stand above all and may name any.
const ROOMS: &[(&str, &[&str])] = &[
    ("request", &[]),
    ("private", &[]),
    ("engine", &["request"]),
    ("kv", &["engine", "request"]),
    // What the scheduler records are telemetry's records; it writes none itself.
    ("scheduler", &["kv", "engine", "request", "snapshots", "telemetry"]),
    ("snapshots", &["kv", "request", "private"]),
    ("prompt", &["engine", "request", "private"]),
    // The scheduler's door, and the label under which a request is recorded.
    ("http", &["prompt", "scheduler", "request", "config", "sources", "telemetry"]),
    ("sources", &[]),
    // A configured value is the value its room takes: `engine::KvType`, `prompt::Profile`. A second type would only be copied.
    ("config", &["engine", "prompt", "request", "sources"]),
    // That each remedy `why` gives is a configuration is tested by reading it.
    ("telemetry", &["config", "private"]),
];

const ABOVE_ALL: [&str; 4] = ["main", "commands", "daemon", "lib"];

/// A file that is longer has more than one reason to change.
const LINES_MAX: usize = 900;

#[test]
fn crates_are_named_only_where_they_belong() {
    for (words, places, why) in CRATES {
        for file in files("src") {
            let is_allowed = places.iter().any(|place| file.name.starts_with(place));
            for word in words.iter().filter(|_| !is_allowed) {
                assert!(!names(&file.code, word), "src/{} names `{word}`, only {places:?} may: {why}", file.name);
            }
        }
        let mut allowed = files("src").into_iter().filter(|file| names(&file.code, words[0]));
        assert!(allowed.next().is_some(), "nobody names `{}`: the rule is dead", words[0]);
    }
}

#[test]
fn rooms_name_only_those_below_them() {
    let files = files("src");
    for file in files.iter().filter(|file| !ABOVE_ALL.contains(&file.room())) {
        let rule = ROOMS.iter().find(|(room, _)| *room == file.room());
        let (room, below) = rule.unwrap_or_else(|| panic!("src/{} is a new room: give it a rule", file.name));
        for other in ROOMS.iter().map(|(other, _)| other).chain(&ABOVE_ALL) {
            let is_named = names(&file.code, &format!("crate::{other}"));
            let is_allowed = other == room || below.contains(other);
            assert!(is_allowed || !is_named, "src/{} names crate::{other}; {room} may name {below:?}", file.name);
        }
        // Lists would hide what they name.
        assert!(!file.code.contains("use crate::{"), "src/{}: one `use` for each room", file.name);
    }
}

#[test]
fn files_say_what_they_define_and_are_not_too_long() {
    for (folder, file) in
        ["src", "tests/it"].iter().flat_map(|folder| files(folder).into_iter().map(move |f| (folder, f)))
    {
        let place = format!("{folder}/{}", file.name);
        assert!(file.text.starts_with("//! "), "{place} begins with what it defines");
        let n_lines = file.text.lines().count();
        assert!(n_lines <= LINES_MAX, "{place} has {n_lines} lines: cut it along its reasons to change");
        // Written so that this file does not hold them itself.
        for unfinished in ["todo", "dbg", "unimplemented"].map(|name| format!("{name}!")) {
            assert!(!file.code.contains(&unfinished), "{place} holds {unfinished}");
        }
        assert!(!file.code.contains(&["#[", "ignore"].concat()), "{place}: a test that is not run shows nothing");
    }
}

#[test]
fn without_default_features_no_cpp_is_compiled() {
    let tree = |features: &[&str]| {
        let cargo = std::env::var("CARGO").expect("cargo runs the tests");
        let mut command = Command::new(cargo);
        command.args(["tree", "--offline", "--locked", "--edges", "normal,build,dev", "--prefix", "none"]);
        let output = command.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // The only crates here that hold C++; SQLite is C.
    let holds_cpp = |tree: &str| tree.lines().any(|line| line.starts_with("llama-cpp") || line.starts_with("cmake "));
    assert!(holds_cpp(&tree(&[])), "with default features llama.cpp is compiled, or this test sees nothing");
    assert!(!holds_cpp(&tree(&["--no-default-features"])));
}
