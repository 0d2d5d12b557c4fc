import numpy as np, pandas as pd
from gradstats.answers import Answer
def test_round(tmp_path):
    f = pd.DataFrame({"estimator":["rloo","=x","é, \"q\""],"r":[1.0,np.nan,np.inf],"g":[0.1,1e-300,-np.inf],"n":[1,2,3],"b":[True,False,True],"m":[None,True,False],"t":["a",None,""],"o":pd.Series([1,"x",None],dtype=object)})
    a = Answer("q", f, {"level":0.5,"x":[1,np.nan,{"y":np.inf}],"none":None,"arr":np.arange(3), "i":np.int64(3)}, "s", ("n1",), {"more":Answer("more", f.head(0))})
    a.save(tmp_path/"a"); b = Answer.read(tmp_path/"a")
    assert a == b
    pd.testing.assert_frame_equal(a.frame,b.frame, check_exact=True)
    print(b.frame.dtypes, b.about)
    a.save(tmp_path/"a", overwrite=False)
    e = Answer("q", pd.DataFrame({"a":[]})); e.save(tmp_path/"e"); assert Answer.read(tmp_path/"e")==e
