"""Ten lines: fit ratings with string ids, predict one with its uncertainty, recommend."""

from hemf import HeMF
from hemf.data.datasets import demo_ratings

ratings = demo_ratings(rng=0).frame()  # or your DataFrame: user, item, rating
model = HeMF(rng=0).fit(ratings)
mean, std = model.predict("user-0042", "film-0137", return_std=True)
print(f"user-0042 on film-0137: {mean:.2f} ± {std:.2f}")
films, scores = model.recommend("user-0042", n=3)
print("recommended:", ", ".join(f"{film} ({score:.1f})" for film, score in zip(films, scores)))
print(f"{model.n_user_communities_} user and {model.n_item_communities_} film communities")
