//! What it costs to find a prompt among 100,000 held tokens: 9,000 of its tokens are held, 30 are new.

use criterion::{Criterion, criterion_group, criterion_main};
use hob::commands::bench::lookup::{N_HELD, full_tree};

fn find(criterion: &mut Criterion) {
    let (tree, prompts) = full_tree();
    let mut prompts = prompts.iter().cycle();
    criterion.bench_function(&format!("find among {N_HELD} held tokens"), |bencher| {
        bencher.iter(|| prompts.next().map(|(owner, tokens)| tree.find((*owner).into(), tokens)))
    });
}

criterion_group!(benches, find);
criterion_main!(benches);
